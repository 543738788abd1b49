// safetensors: files of lmc and of Python, malformed files; foreign maps both ways;
// metrics.
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/weights/foreign.h"
#include "runtime/io/json.h"
#include "runtime/telemetry/metrics.h"
#include "tests/runtime/check.h"

static char dir[] = "/tmp/lm-io-XXXXXX";
static lm_arena *arena;
static char *in_dir(const char *name) {
  return lm_path_join(arena, dir, name);
}

static void write_raw(const char *path, uint64_t length, const char *header, size_t data_bytes) {
  lm_buf b = {0};
  lm_buf_add(&b, &length, 8);
  lm_buf_puts(&b, header);
  for (size_t i = 0; i < data_bytes; i++)
    lm_buf_add(&b, "\x3f", 1);
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  lm_buf_free(&b);
}

static void test_round_trip(void) {
  float x[6] = {1, -2, 3.5f, 0, 1e-20f, -1e20f};
  int32_t k[2] = {7, -9};
  lm_st_tensor t[] = {
      {.name = "b \"x\"", .dtype = LM_ST_F32, .rank = 2, .shape = {2, 3}, .data = x},
      {.name = "a", .dtype = LM_ST_I32, .rank = 1, .shape = {2}, .data = k},
      {.name = "none", .dtype = LM_ST_F32, .rank = 2, .shape = {0, 3}, .data = x},
      {.name = "scalar", .dtype = LM_ST_F32, .data = x + 1}};
  char *path = in_dir("t.safetensors");
  CHECK_OK(lm_st_write(path, t, 4));
  lm_st *st;
  CHECK_OK(lm_st_open(path, &st));
  CHECK(lm_st_count(st) == 4 && !strcmp(lm_st_at(st, 0)->name, "a") && !lm_st_find(st, "c"));
  const lm_st_tensor *b = lm_st_find(st, "b \"x\"");
  float got[6];
  CHECK(b && b->rank == 2 && b->shape[1] == 3);
  CHECK_OK(lm_st_read(b, 0, 6, got));
  CHECK(!memcmp(got, x, sizeof x));
  CHECK(lm_st_find(st, "scalar")->elements == 1 && lm_st_find(st, "none")->elements == 0);
  lm_st_close(st);
}

// ---- files that change under the reader, and obstacles of the writer

static void test_truncated(void) {
  enum {
    N = 1 << 16
  };
  float *x = lm_calloc(N, sizeof *x);
  lm_st_tensor t = {.name = "a", .dtype = LM_ST_F32, .rank = 1, .shape = {N}, .data = x};
  char *path = in_dir("truncated.safetensors");
  CHECK_OK(lm_st_write(path, &t, 1));
  lm_st *st;
  CHECK_OK(lm_st_open(path, &st));
  const lm_st_tensor *a = lm_st_find(st, "a");
  CHECK_OK(lm_st_read_f32(a, N - 1, 1, x));
  CHECK(!truncate(path, a->offset + 4 * (N - 1)));
  CHECK_OK(lm_st_read_f32(a, 0, N - 1, x));
  CHECK_FAILS(lm_st_read_f32(a, 0, N, x), LM_ENV, "was truncated while it was in use");
  lm_st_close(st);
  lm_free(x);
  CHECK(!unlink(path));
}

// A link under the temporary name is replaced, and its target is not written to.
static void test_temporary_is_link(void) {
  float x = 1;
  struct stat info;
  lm_st_tensor t = {.name = "a", .dtype = LM_ST_F32, .data = &x};
  char *path = in_dir("linked.safetensors"), *target = in_dir("target");
  CHECK_OK(lm_file_write_atomic(target, "kept", 4));
  CHECK(!symlink(target, in_dir("linked.safetensors.tmp")));
  CHECK_OK(lm_st_write(path, &t, 1));
  CHECK(!stat(target, &info) && info.st_size == 4);
  CHECK(!lstat(path, &info) && S_ISREG(info.st_mode));
  CHECK(!unlink(path) && !unlink(target));
}

// ---- JSON: integers of any size are numbers

static const struct {
  const char *text;
  bool integer;
  double value;
} NUMBERS[] = {{"9223372036854775807", true, 9223372036854775807.0},
               {"9223372036854775808", false, 9223372036854775808.0},
               {"-9223372036854775808", true, -9223372036854775808.0},
               {"-9223372036854775809", false, -9223372036854775809.0},
               {"1000000000000000019884624838656", false, 1e30},
               {"10000000000000000000000.5e-3", false, 1e19},
               {"12e1", false, 120}};

static void test_json_integers(void) {
  for (size_t i = 0; i < LM_COUNT(NUMBERS); i++) {
    const char *text = lm_arena_printf(
        arena, "{\"a\": [%s], \"b\": \"\\\"99999999999999999999\", \"c\": 1}", NUMBERS[i].text);
    json_t *j;
    CHECK_OK(lm_json_parse(text, strlen(text), "test", &j));
    const json_t *number = json_array_get(json_object_get(j, "a"), 0);
    CHECK(json_is_integer(number) == NUMBERS[i].integer &&
          json_number_value(number) == NUMBERS[i].value);
    CHECK(!strcmp(json_string_value(json_object_get(j, "b")), "\"99999999999999999999"));
    CHECK(json_integer_value(json_object_get(j, "c")) == 1);
    json_decref(j);
  }
}

// Text that is not JSON is an error, with its position.
static void test_json_faults(void) {
  static const char *const faults[] = {"[99999999999999999999",
                                       "99999999999999999999 1",
                                       "[099999999999999999999]",
                                       "{\"a\": 99999999999999999999, \"a\": 1}",
                                       "\"99999999999999999999",
                                       "1e999",
                                       "[-]"};
  for (size_t i = 0; i < LM_COUNT(faults); i++) {
    json_t *j;
    lm_status s = lm_json_parse(faults[i], strlen(faults[i]), "test", &j);
    CHECK(s && s->kind == LM_USER && !j && strstr(s->text, "test:1:"));
    lm_status_free(s);
  }
}

// Python's json writes numbers that are not finite.
static void test_json_python(void) {
  const char *path = in_dir("python.json");
  const char *text = "{\"a\": [0.0, Infinity, -Infinity, NaN], \"b\": \"Infinity \\\" NaN\"}";
  json_t *j;
  CHECK_OK(lm_file_write_atomic(path, text, strlen(text)));
  lm_status s = lm_json_read(path, 1 << 20, &j);
  CHECK(s && s->kind == LM_USER);
  lm_status_free(s);
  CHECK_OK(lm_json_read_python(path, 1 << 20, &j));
  const json_t *a = json_object_get(j, "a");
  CHECK(!strcmp(json_string_value(json_array_get(a, 1)), "Infinity"));
  CHECK(!strcmp(json_string_value(json_array_get(a, 2)), "-Infinity"));
  CHECK(!strcmp(json_string_value(json_array_get(a, 3)), "NaN"));
  CHECK(!strcmp(json_string_value(json_object_get(j, "b")), "Infinity \" NaN"));
  json_decref(j);
  CHECK(!unlink(path));
}

// Tensors of sizes around LM_SUM_PIECE are written unchanged, and the checksum computed while
// writing equals the file's.
static void test_sum(void) {
  enum {
    MOST = 3 * LM_SUM_PIECE
  };
  char *path = in_dir("t.safetensors");
  char *bytes = lm_alloc(MOST);
  for (int i = 0; i < MOST; i++)
    bytes[i] = (char)(i * 2654435761u >> 24);
  static const int64_t sizes[] = {
      0, 100, LM_SUM_PIECE - 128, LM_SUM_PIECE - 129, LM_SUM_PIECE, LM_SUM_PIECE + 1, MOST - 7};
  for (size_t i = 0; i < LM_COUNT(sizes); i++) {
    lm_st_tensor t[] = {
        {.name = "a", .dtype = LM_ST_U8, .rank = 1, .shape = {sizes[i]}, .data = bytes},
        {.name = "b", .dtype = LM_ST_U8, .rank = 1, .shape = {5}, .data = bytes}};
    lm_sum sum;
    lm_buf text = {0};
    lm_st_writer *w;
    CHECK_OK(lm_st_writer_create(path, t, 2, &w));
    CHECK_OK(lm_st_writer_append(w, bytes, (size_t)sizes[i]));
    CHECK_OK(lm_st_writer_append(w, bytes, 5));
    CHECK_OK(lm_st_writer_finish(w, &sum));
    CHECK_OK(lm_file_read(path, 2 * MOST, &text));
    lm_sum is = lm_sum_of(text.p, text.n);
    CHECK(sum.bytes == text.n && is.bytes == text.n && sum.hash == is.hash);
    CHECK(!memcmp(text.p + text.n - 5, bytes, 5) &&
          !memcmp(text.p + text.n - 5 - sizes[i], bytes, (size_t)sizes[i]));
    lm_buf_free(&text);
  }
  lm_free(bytes);
}

// Bytes as Python's safetensors writes them: {"w": float16 [[1.5, -2], [0, 65504]], "v": bfloat16
// [3]}.
static void test_python_bytes(void) {
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_"
      "offsets\":[2,10]},"
      "\"v\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}   ";
  static const unsigned char data[] = {0x40, 0x40, 0x00, 0x3e, 0x00, 0xc0, 0x00, 0x00, 0xff, 0x7b};
  lm_buf b = {0};
  uint64_t n = sizeof header - 1;
  lm_buf_add(&b, &n, 8);
  lm_buf_puts(&b, header);
  lm_buf_add(&b, data, sizeof data);
  char *path = in_dir("p.safetensors");
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  lm_buf_free(&b);
  lm_st *st;
  CHECK_OK(lm_st_open(path, &st));
  float x[4];
  const lm_st_tensor *w = lm_st_find(st, "w");
  const lm_st_tensor *v = lm_st_find(st, "v");
  CHECK_OK(lm_st_read_f32(w, 0, 4, x));
  CHECK(x[0] == 1.5f && x[1] == -2 && x[2] == 0 && x[3] == 65504);
  CHECK_OK(lm_st_read_f32(w, 3, 1, x));
  CHECK(x[0] == 65504);
  CHECK_OK(lm_st_read_f32(v, 0, 1, x));
  CHECK(x[0] == 3);
  lm_st_close(st);
}

static void test_rounding(void) {
  float x[] = {1.00390625f, 1.01171875f, 3.4e38f, NAN},
        y[4]; // halfway cases to even: 1.0, 1.015625
  uint16_t h[4];
  lm_st_from_f32(LM_ST_BF16, x, 4, h);
  lm_st_to_f32(LM_ST_BF16, h, 0, 4, y);
  CHECK(y[0] == 1 && y[1] == 1.015625f && isinf(y[2]) && isnan(y[3]));
}

static void test_malformed(void) {
#define ENTRY(type, shape, from, to)                                                               \
  "{\"a\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}}"
  static const struct {
    const char *header;
    size_t data;
    const char *want;
  } bad[] = {
      {"{", 0, "not JSON"},
      {"[1]", 0, "not a JSON object"},
      {"{\"a\":1}", 0, "no dtype"},
      {"{\"a\":{\"dtype\":\"F7\"}}", 0, "not supported"},
      {ENTRY("F32", "[-1]", 0, 4), 4, "shape"},
      {ENTRY("F32", "[1.5]", 0, 4), 4, "shape"},
      {ENTRY("F32", "[4294967296,4294967296]", 0, 4), 4, "shape"},
      {ENTRY("F64", "[2305843009213693952]", 0, 4), 4, "shape"},
      {ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4), 4, "shape"},
      {ENTRY("F32", "[1]", 4, 0), 4, "outside"},
      {ENTRY("F32", "[1]", 0, 8), 4, "outside"},
      {ENTRY("F32", "[1]", -4, 0), 4, "data_offsets"},
      {ENTRY("F32", "[2]", 0, 4), 4, "need 8"},
      {ENTRY("F32", "[1]", 4, 8), 8, "no tensor"},
      {ENTRY("F32", "[1]", 0, 4), 8, "after the last"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\","
       "\"shape\":[2],\"data_offsets\":[1,3]}}",
       3, "overlaps"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":1}", 0, "duplicate"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1e300],\"data_offsets\":[0,0]}}", 0, "shape"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0,
       "shape"},
  };
  char *path = in_dir("bad.safetensors");
  lm_st *st;
  for (size_t i = 0; i < LM_COUNT(bad); i++) {
    write_raw(path, strlen(bad[i].header), bad[i].header, bad[i].data);
    CHECK_FAILS(lm_st_open(path, &st), LM_USER, bad[i].want);
  }
  uint64_t lengths[] = {3, 1000, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 40};
  for (size_t i = 0; i < LM_COUNT(lengths); i++) {
    write_raw(path, lengths[i], "{}", 0);
    CHECK_FAILS(lm_st_open(path, &st), LM_USER, "not a safetensors file");
  }
  CHECK_OK(lm_file_write_atomic(path, "1234567", 7));
  CHECK_FAILS(lm_st_open(path, &st), LM_USER, "7 bytes");
  CHECK_FAILS(lm_st_open(in_dir("nothing"), &st), LM_ENV, "No such file");
}

static void test_folder(void) {
  float x[2] = {1, 2};
  lm_st_tensor a = {.name = "a", .dtype = LM_ST_F32, .rank = 1, .shape = {2}, .data = x}, b = a;
  b.name = "b";
  lm_st *st;
  char *folder = in_dir("folder");
  char *index = in_dir("folder/model.safetensors.index.json");
  CHECK_OK(lm_dir_make(folder));
  CHECK_FAILS(lm_st_open(folder, &st), LM_USER, "no .safetensors");
  CHECK_OK(lm_st_write(in_dir("folder/1.safetensors"), &a, 1));
  CHECK_OK(lm_st_write(in_dir("folder/2.safetensors"), &b, 1));
  CHECK_OK(lm_st_open(folder, &st));
  CHECK(lm_st_count(st) == 2);
  lm_st_close(st);
  static const struct {
    const char *index, *want;
  } cases[] = {
      {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", NULL},
      {"{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"2.safetensors\"}}",
       "tensor a is not in 2.safetensors"},
      {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "same folder"},
      {"{\"weight_map\":{\"a\":1}}", "same folder"},
      {"{}", "no weight_map"},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    CHECK_OK(lm_file_write_atomic(index, cases[i].index, strlen(cases[i].index)));
    if (cases[i].want)
      CHECK_FAILS(lm_st_open(folder, &st), LM_USER, cases[i].want);
    else {
      CHECK_OK(lm_st_open(folder, &st));
      lm_st_close(st);
    }
  }
  const char *named = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
  CHECK_OK(
      lm_file_write_atomic(in_dir("folder/other.safetensors.index.json"), named, strlen(named)));
  CHECK_OK(lm_st_open(in_dir("folder/other.safetensors"), &st));
  CHECK(lm_st_count(st) == 2 && lm_st_find(st, "b"));
  lm_st_close(st);
  unlink(in_dir("folder/other.safetensors.index.json"));
  unlink(index);
  CHECK_OK(lm_st_write(in_dir("folder/2.safetensors"), &a, 1));
  CHECK_FAILS(lm_st_open(folder, &st), LM_USER, "tensor a is in");
}

static bool ignore_junk(void *user, const char *name) {
  return !strcmp(name, user);
}

// Native q [2, 3] and k [1, 3] stand transposed and side by side in "qk" [3, 3] = [d, q + k]; e [2,
// 2] is one tensor for each first index.
static void test_foreign(void) {
  float q[6], k[3], e[4], out[9];
  lm_foreign_native natives[] = {{.name = "q", .data = q, .elements = 6},
                                 {.name = "k", .data = k, .elements = 3},
                                 {.name = "e", .data = e, .elements = 4}};
  lm_foreign_map maps[] = {
      {"q", "qk", 2, {3, 3}, 2, {2, 3}, {3, 1}, {1, 3}, 0, 0},
      {"k", "qk", 2, {3, 3}, 2, {1, 3}, {3, 1}, {1, 3}, 0, 2},
      {"e", "e.1", 1, {2}, 1, {2}, {1}, {1}, 2, 0},
      {"e", "e.0", 1, {2}, 1, {2}, {1}, {1}, 0, 0},
  };
  float qk[9] = {1, 4, 7, 2, 5, 8, 3, 6, 9}, e0[2] = {10, 11}, e1[2] = {12, 13};
  lm_st_tensor t[] = {{.name = "qk", .dtype = LM_ST_F32, .rank = 2, .shape = {3, 3}, .data = qk},
                      {.name = "e.0", .dtype = LM_ST_F32, .rank = 1, .shape = {2}, .data = e0},
                      {.name = "e.1", .dtype = LM_ST_F32, .rank = 1, .shape = {2}, .data = e1},
                      {.name = "junk", .dtype = LM_ST_I32, .rank = 1, .shape = {2}, .data = e1}};
  char *path = in_dir("f.safetensors");
  CHECK_OK(lm_st_write(path, t, 4));
  lm_st *st;
  lm_foreign *f;
  CHECK_OK(lm_st_open(path, &st));
  CHECK_OK(lm_foreign_create(maps, 4, natives, 3, LM_FOREIGN_ONCE, &f));
  CHECK_FAILS(lm_foreign_import(f, st, NULL, NULL), LM_USER, "extra: junk");
  CHECK_OK(lm_foreign_import(f, st, ignore_junk, "junk"));
  for (int i = 0; i < 6; i++)
    CHECK(q[i] == i + 1);
  for (int i = 0; i < 3; i++)
    CHECK(k[i] == i + 7);
  for (int i = 0; i < 4; i++)
    CHECK(e[i] == i + 10);
  lm_st_close(st);
  CHECK(lm_foreign_count(f) == 3);
  lm_foreign_gather(f, 2, out);
  CHECK(!memcmp(out, qk, sizeof qk));
  CHECK_OK(lm_foreign_export(f, path, LM_ST_F32));
  CHECK_OK(lm_st_open(path, &st));
  CHECK(lm_st_count(st) == 3);
  CHECK_OK(lm_st_read(lm_st_find(st, "qk"), 0, 9, out));
  CHECK(!memcmp(out, qk, sizeof qk));
  lm_st_close(st);

  t[0].shape[0] = 9;
  t[0].shape[1] = 1;
  t[1].name = "e.9";
  CHECK_OK(lm_st_write(path, t, 4));
  CHECK_OK(lm_st_open(path, &st));
  CHECK_FAILS(
      lm_foreign_import(f, st, NULL, NULL), LM_USER,
      "\n  missing: e.0 [2]\n  shape: qk is [9, 1], should be [3, 3]\n  extra: e.9\n  extra: junk");
  lm_st_close(st);
  lm_foreign_destroy(f);

  maps[1].offset_foreign = 1;
  CHECK_FAILS(lm_foreign_create(maps, 4, natives, 3, LM_FOREIGN_ONCE, &f), LM_USER,
              "foreign tensor qk has elements that are mapped twice");
  maps[1].offset_foreign = 3;
  CHECK_FAILS(lm_foreign_create(maps, 4, natives, 3, LM_FOREIGN_ONCE, &f), LM_USER,
              "foreign tensor qk is mapped outside its shape");
  maps[1].offset_foreign = 2;
  CHECK_FAILS(lm_foreign_create(maps, 3, natives, 3, LM_FOREIGN_ONCE, &f), LM_USER,
              "native tensor e has elements that are not mapped");
  CHECK_FAILS(lm_foreign_create(maps, 2, natives, 3, LM_FOREIGN_ONCE, &f), LM_USER,
              "native tensor e has no mapping");
  CHECK_FAILS(lm_foreign_create(maps, 4, natives, 2, LM_FOREIGN_ONCE, &f), LM_USER,
              "native tensor e is mapped but does not exist");
}

static void test_metrics(void) {
  char *path = in_dir("m.jsonl");
  lm_metrics *m;
  CHECK_OK(lm_metrics_open(path, 0, &m));
  for (int k = 1; k <= 3; k++)
    CHECK_OK(lm_metrics_add(m, k, (lm_metric[]){{"loss", 0.1 * k}, {"bad", NAN}}, 2));
  lm_metrics_close(m);
  lm_buf b = {0};
  CHECK_OK(lm_file_read(path, 1000, &b));
  lm_buf_puts(&b, "{\"step\": 3, \"lo");
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  CHECK_OK(lm_metrics_open(path, 2, &m));
  CHECK_OK(lm_metrics_add(m, 3, NULL, 0));
  lm_metrics_close(m);
  b.n = 0;
  CHECK_OK(lm_file_read(path, 1000, &b));
  CHECK(!strcmp(b.p, "{\"step\": 1, \"loss\": 0.1, \"bad\": null}\n{\"step\": 2, \"loss\": 0.2, "
                     "\"bad\": null}\n{\"step\": 3}\n"));
  lm_buf_free(&b);
}

int main(void) {
  CHECK(mkdtemp(dir));
  arena = lm_arena_create();
  test_json_integers();
  test_json_faults();
  test_json_python();
  test_round_trip();
  test_truncated();
  test_temporary_is_link();
  test_sum();
  test_python_bytes();
  test_rounding();
  test_malformed();
  test_folder();
  test_foreign();
  test_metrics();
  for (const char **p =
           (const char *[]){"t.safetensors", "p.safetensors", "bad.safetensors", "f.safetensors",
                            "m.jsonl", "folder/1.safetensors", "folder/2.safetensors", NULL};
       *p; p++)
    unlink(in_dir(*p));
  rmdir(in_dir("folder"));
  CHECK(!rmdir(dir));
  lm_arena_destroy(arena);
  return 0;
}
