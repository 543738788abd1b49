// metrics.c - metrics.jsonl.
#include "runtime/telemetry/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"

#include "runtime/io/json.h"

struct lm_metrics {
  int fd;
  char *path;
  lm_buf line;
};

// Bytes of the leading whole lines whose step is at most `step`.
static size_t kept_bytes(const lm_buf *text, int64_t step) {
  size_t at = 0;
  while (at < text->n) {
    const char *line = text->p + at;
    const char *end = memchr(line, '\n', text->n - at);
    long long n;
    if (!end || sscanf(line, "{\"step\": %lld", &n) != 1 || n > step)
      break;
    at = (size_t)(end + 1 - text->p);
  }
  return at;
}

static lm_status truncate_to(int fd, const char *path, int64_t step) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, SIZE_MAX, &text);
  if (!s && ftruncate(fd, (off_t)kept_bytes(&text, step)))
    s = lm_fail_errno("cannot truncate %s", path);
  lm_buf_free(&text);
  return s;
}

lm_status lm_metrics_open(const char *path, int64_t step, lm_metrics **out) {
  *out = NULL;
  int fd;
  LM_TRY(lm_open_append(path, &fd));
  lm_status s = truncate_to(fd, path, step);
  if (s) {
    close(fd);
    return s;
  }
  lm_metrics *m = lm_alloc(sizeof *m);
  m->fd = fd;
  m->path = lm_strdup(path);
  *out = m;
  return NULL;
}

lm_status lm_metrics_add(lm_metrics *m, int64_t step, const lm_metric *items, size_t n) {
  m->line.n = 0;
  lm_buf_printf(&m->line, "{\"step\": %lld", (long long)step);
  for (size_t i = 0; i < n; i++) {
    lm_buf_puts(&m->line, ", ");
    lm_buf_json(&m->line, items[i].name);
    lm_buf_puts(&m->line, ": ");
    lm_json_number(&m->line, items[i].value);
  }
  lm_buf_puts(&m->line, "}\n");
  return lm_fd_write(m->fd, m->path, m->line.p, m->line.n);
}

void lm_metrics_close(lm_metrics *m) {
  if (!m)
    return;
  close(m->fd);
  lm_free(m->path);
  lm_buf_free(&m->line);
  lm_free(m);
}
