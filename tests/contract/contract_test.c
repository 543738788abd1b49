// contract_test.c - the tables of contract/: names parse to the printed entry, and names that only
// resemble one are the program's.
#include <string.h>

#include "contract/func.h"
#include "tests/runtime/check.h"

static void test_key(lm_func_key k, const char *text) {
  char name[LM_FUNC_NAME];
  CHECK(!strcmp(lm_func_key_print(k, name), text));
  CHECK(lm_func_key_equal(lm_func_key_parse(text), k));
}

static void test_functions(void) {
  static const char *const others[] = {"",
                                       "micr",
                                       "microscope",
                                       "micro.",
                                       "micro.x",
                                       "loss.0",
                                       "loss.064",
                                       "loss.-1",
                                       "loss.6x",
                                       "norm.64",
                                       "f",
                                       "losses.64",
                                       "nn.loss.1",
                                       "loss 64",
                                       "norm.extra",
                                       "loss.extra.",
                                       "loss.64.extra",
                                       "loss.extras"};
  for (int i = 0; i < LM_FUNCS; i++)
    test_key((lm_func_key){(lm_func_id)i}, lm_func_table[i].name);
  test_key((lm_func_key){LM_FUNC_MICRO, 512}, "micro.512");
  test_key((lm_func_key){LM_FUNC_LOSS, INT64_MAX}, "loss.9223372036854775807");
  test_key((lm_func_key){.id = LM_FUNC_RATES, .extra = true}, "rates.extra");
  test_key((lm_func_key){LM_FUNC_LOSS, INT64_MAX, true}, "loss.extra.9223372036854775807");
  for (size_t i = 0; i < LM_COUNT(others); i++)
    CHECK(lm_func_key_parse(others[i]).id == LM_FUNCS);
}

static void test_ports(void) {
  for (int i = 0; i < LM_PORTS; i++)
    CHECK((int)lm_port_find(lm_port_table[i].name) == i);
  CHECK(lm_port_find("rate.0") == LM_PORTS && lm_port_find("") == LM_PORTS);
  for (int i = 0; i < LM_COLUMNS; i++)
    CHECK((int)lm_column_find(lm_column_table[i].name) == i);
  CHECK(lm_column_find("step") == LM_COLUMNS);
}

static void test_dtypes(void) {
  for (int i = 0; i < LM_REAL; i++) {
    const lm_st_dtype_info *stored = &lm_st_dtype_table[lm_dtype_table[i].stored];
    CHECK(stored->bytes == lm_dtype_bytes((lm_dtype)i));
    CHECK(stored->is_float == lm_dtype_is_float((lm_dtype)i));
  }
}

int main(void) {
  test_functions();
  test_ports();
  test_dtypes();
}
