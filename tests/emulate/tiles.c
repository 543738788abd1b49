// tiles.c - preloaded in the guest, whose kernel does not support AMX: makes arch_prctl(2) report
// that a request for the tile registers succeeded. Only one thread may use them, because the kernel
// does not save them on a context switch.
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  REQUEST = 0x1023
}; // ARCH_REQ_XCOMP_PERM

long syscall(long number, ...) {
  long a[6], result;
  va_list ap;
  va_start(ap, number);
  for (int i = 0; i < 6; i++)
    a[i] = va_arg(ap, long);
  va_end(ap);
  if (number == SYS_arch_prctl && a[0] == REQUEST)
    return 0;
  register long fourth __asm__("r10") = a[3], fifth __asm__("r8") = a[4],
                       sixth __asm__("r9") = a[5];
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(fourth), "r"(fifth),
                     "r"(sixth)
                   : "rcx", "r11", "memory");
  if (result >= 0)
    return result;
  errno = (int)-result;
  return -1;
}
