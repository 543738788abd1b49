// rank_log.c - see rank_log.h.
#include "runtime/train/rank_log.h"

#include <stdio.h>
#include <unistd.h>

#include "runtime/base/file.h"

struct lm_rank_log {
  FILE *f;
  const lm_comm *comm;
  double now, waited; // at the end of the last step
};

static lm_status written(FILE *f) {
  return fflush(f) || ferror(f) ? lm_fail_errno("cannot write the log of this rank") : NULL;
}

static lm_status start_write(const lm_rank_log *l, int64_t step) {
  lm_comm_self self = lm_comm_self_of(l->comm);
  lm_buf host = {0};
  lm_buf_json(&host, self.host);
  fprintf(l->f, "{\"rank\":%d,\"ranks\":%d,\"host\":%s,\"process\":%d,\"from\":%lld}\n", self.rank,
          self.size, host.p, (int)getpid(), (long long)step);
  lm_buf_free(&host);
  return written(l->f);
}

static lm_status file_open(const char *dir, int rank, FILE **out) {
  lm_buf path = {0};
  int fd = -1;
  lm_buf_printf(&path, "%s/logs", dir);
  lm_status s = lm_dir_make(path.p);
  lm_buf_printf(&path, "/rank-%d.jsonl", rank);
  if (!s)
    s = lm_open_append(path.p, &fd);
  *out = fd < 0 ? NULL : fdopen(fd, "a");
  if (!s && !*out)
    s = lm_fail_errno("cannot open %s", path.p);
  if (fd >= 0 && !*out)
    close(fd);
  lm_buf_free(&path);
  return s;
}

lm_status lm_rank_log_open(const char *dir, const lm_comm *comm, int64_t step, lm_rank_log **out) {
  FILE *f;
  LM_TRY(file_open(dir, lm_comm_self_of(comm).rank, &f));
  *out = lm_alloc(sizeof **out);
  **out = (lm_rank_log){f, comm, lm_now(), lm_comm_waited(comm)};
  return start_write(*out, step);
}

lm_status lm_rank_log_step(lm_rank_log *l, int64_t step) {
  if (!l)
    return NULL;
  double now = lm_now(), waited = lm_comm_waited(l->comm);
  fprintf(l->f, "{\"step\":%lld,\"seconds\":%.6g,\"waited\":%.6g}\n", (long long)step, now - l->now,
          waited - l->waited);
  l->now = now;
  l->waited = waited;
  return written(l->f);
}

void lm_rank_log_close(lm_rank_log *l, const lm_status end) {
  lm_buf text = {0};
  if (!l)
    return;
  lm_buf_json(&text, end ? end->text : "");
  fprintf(l->f, "{\"end\":%s}\n", text.p);
  fclose(l->f);
  lm_buf_free(&text);
  lm_free(l);
}
