// cmd_doctor.c - lmc doctor: the parts of this machine that lmc uses, and what each missing part
// would give.
#include "driver/inspect/machine.h"
#include "lmc/command.h"
#include "runtime/base/terminal.h"

static const lm_opt options[] = {LM_OPT_JSON, {0}};

static void findings_text(const lm_finding *f, int n, lm_buf *out) {
  lm_buf_printf(out, "lmc %s\n", LM_VERSION);
  for (int i = 0; i < n; i++)
    if (f[i].found)
      lm_buf_printf(out, "  found    %-13s  %s\n", f[i].name, f[i].what);
    else
      lm_buf_printf(out, "  missing  %-13s  would give %s\n", f[i].name, f[i].gives);
}

static void findings_json(const lm_finding *f, int n, lm_buf *b) {
  lm_buf_puts(b, "[");
  for (int i = 0; i < n; i++) {
    lm_buf_puts(b, i ? ",\n {\"name\": " : "{\"name\": ");
    lm_buf_json(b, f[i].name);
    lm_buf_printf(b, ", \"found\": %s, \"what\": ", f[i].found ? "true" : "false");
    lm_buf_json(b, f[i].found ? f[i].what : f[i].gives);
    lm_buf_puts(b, "}");
  }
  lm_buf_puts(b, "]\n");
}

static lm_status doctor_run(lm_cli *cli) {
  lm_machine_findings x;
  lm_buf b = {0};
  lm_machine_inspect(cli->ctx->arena, &x);
  (cli->json ? findings_json : findings_text)(x.v, x.n, &b);
  lm_status s = lm_machine_verdict(&x);
  if (!s && !cli->json)
    lm_buf_printf(&b, "models can be trained on this machine's CPU%s\n",
                  x.gpu ? " and on its GPU" : "");
  lm_print_report(stdout, cli->json, &b);
  return s;
}

const lm_command lm_cmd_doctor = {
    .name = "doctor",
    .usage = "[--json]",
    .summary = "parts of this machine that lmc uses, found or missing",
    .options = options,
    .least = 0,
    .most = 0,
    .run = doctor_run,
    .help =
        "Exit status 2 if models cannot be trained here. Environment variables of all commands:\n"
        "\n"
        "  LMC_CC           the C compiler, a program or words such as \"ccache gcc\" (default: "
        "CC, else cc), without options; quotes may be around a path with blanks\n"
        "  LMC_CACHE        folder of compiled kernels and packed data (default: ~/.cache/lmc)\n"
        "  LMC_CACHE_SIZE   bytes of compiled kernels that are kept, as 500M or 4Gi (default: "
        "4Gi)\n"
        "  LMC_CPU          x86-64-v2, x86-64-v3 or x86-64-v4, on aarch64 armv8-a or "
        "armv8.2-a+bf16: uses no more of the processor than that\n"
        "  OMP_NUM_THREADS  the largest number of threads (by default one for each processor of "
        "the affinity mask, but no more than the CPU quota of the control group allows)\n"
        "  OMP_WAIT_POLICY  how a thread waits for the others: passive sleeps at once, active "
        "spins for up to a second; by default it spins for up to 100 microseconds, less while that "
        "fails, and then sleeps. The results are the same.\n"
        "  NO_COLOR         if it is not empty, errors on a terminal have no colors\n"
        "\n"
        "  lmc doctor\n"};
