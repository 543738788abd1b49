// tensorboard.h - writes scalars to a TensorBoard event file.
//
// The file is a sequence of records: length (8 bytes), checksum of the length (4), data, checksum
// of the data (4), all little-endian. A checksum is (c >> 15 | c << 17) + 0xa282ead8 for CRC-32C c.
// The data is a protocol buffer of
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5 }
//   Summary { repeated Value value = 1 }    Value { string tag = 1; float simple_value = 2 }
// Source: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto and
// lib/io/record_writer.h.
#ifndef LM_TELEMETRY_TENSORBOARD_H
#define LM_TELEMETRY_TENSORBOARD_H
#include "runtime/telemetry/metrics.h"

typedef struct lm_events lm_events;
// Keeps the events of steps up to `step` (0: none) and removes all later ones, and everything from
// the first incomplete record on.
lm_status lm_events_open(const char *path, int64_t step, lm_events **out);
// Writes one event; `seconds` is Unix time. Values that are not finite are omitted.
lm_status lm_events_add(lm_events *e, int64_t step, double seconds, const lm_metric *items,
                        size_t n);
void lm_events_close(lm_events *e); // e may be NULL
#endif
