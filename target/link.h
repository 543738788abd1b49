// link.h - connections between devices as plain data (links.def).
#ifndef LM_TARGET_LINK_H
#define LM_TARGET_LINK_H
#include "target/target.h"

typedef struct lm_link {
  const char *name, *title;
  double bandwidth; // bytes per second that a device sends, while it receives as many
  double latency;   // seconds until a message arrives
} lm_link;

// NULL if there is none of the name.
const lm_link *lm_link_find(const char *name);
// That between devices of this kind in one machine; NULL: unknown.
const lm_link *lm_link_of(const lm_target *t);
// Name i, or NULL.
const char *lm_link_name(int i);
#endif
