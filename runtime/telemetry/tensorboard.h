// tensorboard.h - scalars as TensorBoard reads them: an event file in a run's folder.
//
// The file is records: length (8 bytes), its checksum (4), data, its checksum (4), little-endian; a
// checksum is CRC-32C c as (c >> 15 | c << 17) + 0xa282ead8. The data is a protocol buffer of
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5 }
//   Summary { repeated Value value = 1 }    Value { string tag = 1; float simple_value = 2 }
// after https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto and
// lib/io/record_writer.h
#ifndef LM_IO_TENSORBOARD_H
#define LM_IO_TENSORBOARD_H
#include "runtime/telemetry/metrics.h"

typedef struct lm_events lm_events;
// Keeps the events of steps up to `step` (0: none) and removes everything behind them, or behind
// what is torn.
lm_status lm_events_open(const char *path, int64_t step, lm_events **out);
// One event; `seconds` since 1970. Values that are not finite are left out.
lm_status lm_events_add(lm_events *e, int64_t step, double seconds, const lm_metric *items,
                        size_t n);
void lm_events_close(lm_events *e); // NULL is fine
#endif
