// terminal.c - see terminal.h.
#include "runtime/base/terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/diag.h"
#include "runtime/base/pages.h"

enum {
  USUAL_WIDTH = 80,
  STACK_LEAST = 512 << 10, // bytes
  STACK_HELD = 1 << 20
};

// mpirun gives its processes a terminal, wherever it prints itself, which --ranks says.
static bool is_terminal(FILE *f) {
  const char *printed = getenv("LMC_RANKS_TERMINAL");
  return isatty(fileno(f)) && (!printed || strcmp(printed, "0") != 0);
}

int lm_terminal_width(FILE *f) {
  struct winsize size;
  if (!is_terminal(f))
    return 0;
  if (ioctl(fileno(f), TIOCGWINSZ, &size) || !size.ws_col)
    return USUAL_WIDTH;
  return size.ws_col;
}

// The control characters of ASCII, and U+0080 to U+009F, whose first byte in UTF-8 is c2.
static bool is_control(unsigned char before, unsigned char c) {
  if (c >= 0x80)
    return before == 0xc2 && c < 0xa0;
  return c == 0x7f || (c < ' ' && c != '\n' && c != '\t');
}

void lm_terminal_write(FILE *to, const char *p, size_t n) {
  static char before; // of an earlier call too, as a token may be one byte
  bool terminal = is_terminal(to);
  for (size_t i = 0; i < n; i++) {
    if (terminal && is_control((unsigned char)before, (unsigned char)p[i]))
      fprintf(to, "\\x%02x", (unsigned char)p[i]);
    else
      putc(p[i], to);
    before = p[i];
  }
  fflush(to);
}

void lm_vprint_wrapped(FILE *to, int indent, const char *fmt, va_list ap) {
  lm_buf text = {0};
  lm_buf shown = {0};
  lm_buf wrapped = {0};
  lm_buf_vprintf(&text, fmt, ap);
  lm_buf_lines_shown(&shown, text.p);
  lm_text_wrap(&wrapped, shown.p ? shown.p : "", lm_terminal_width(to), indent);
  fputs(wrapped.p ? wrapped.p : "", to);
  lm_buf_free(&text);
  lm_buf_free(&shown);
  lm_buf_free(&wrapped);
}

void lm_print_wrapped(FILE *to, int indent, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_vprint_wrapped(to, indent, fmt, ap);
  va_end(ap);
}

void lm_print_report(FILE *to, bool json, lm_buf *text) {
  if (json)
    lm_puts_shown(to, text->p);
  else
    lm_print_wrapped(to, LM_LAST_COLUMN, "%s", text->p);
  lm_buf_free(text);
}

// The stack grows as it is used, and where the address space is limited a process ends with a
// signal if it cannot. So it grows to this size at the start, where a lack of space is reported.
__attribute__((noinline)) static void stack_hold(size_t bytes) {
  lm_memory_expect(2 * bytes);
  *(volatile char *)__builtin_alloca(bytes) = 0;
}

static lm_status stack_check(void) {
  struct rlimit stack;
  if (getrlimit(RLIMIT_STACK, &stack))
    return NULL;
  if (stack.rlim_cur < STACK_LEAST)
    return lm_fail(LM_ENV, "the stack is limited to %llu kB (ulimit -s); it must have %d kB",
                   (unsigned long long)stack.rlim_cur >> 10, STACK_LEAST >> 10);
  // arguments and the environment take up to a quarter of a small stack
  stack_hold(stack.rlim_cur / 2 < STACK_HELD ? stack.rlim_cur / 2 : STACK_HELD);
  return NULL;
}

lm_status lm_process_prepare(void) {
  lm_heap_prepare();
  signal(SIGXFSZ, SIG_IGN);
  int fd;
  do
    fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0)
    close(fd);
  return stack_check();
}
