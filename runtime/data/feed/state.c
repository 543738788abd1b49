// state.c - the description of opened data: its stages, its parts, its key.
#include "runtime/data/feed/state.h"

#include <string.h>

int lm_data_stage_of(const lm_data *d, int64_t step) {
  int i = 0;
  while (i + 1 < d->n_stages && step >= d->stages[i + 1].first_step)
    i++;
  return i;
}

int64_t lm_data_seq(const lm_data *d, int64_t step) {
  return d->replay ? d->seq : d->lengths[d->stages[lm_data_stage_of(d, step)].length].seq;
}

bool lm_data_rereads(const lm_data *d, int64_t batch, lm_data_reread *out) {
  for (int i = 0; i < d->n_stages && !d->replay; i++) {
    const lm_data_length *x = &d->lengths[d->stages[i].length];
    for (int g = 0; g < d->groups; g++) {
      double share = d->groups > 1 ? (double)d->mix.stages[i].share[g] * 0x1p-32 : 1;
      *out = (lm_data_reread){d->groups > 1 ? g : -1, (int64_t)(share * (double)batch + 0.5),
                              (int64_t)x->train->spans[g].n * x->seq};
      if (out->step > out->epoch)
        return true;
    }
  }
  return false;
}

lm_status lm_data_span_visit(const lm_data_length *x, const lm_data_span *s,
                             lm_status (*visit)(void *user, const lm_piece *p), void *user) {
  return lm_row_index_visit(&x->index, s->set, s->first, s->n, visit, user);
}

lm_data_info lm_data_info_of(const lm_data *d) {
  lm_data_info info = {
      .n_parts = d->n_parts,
      .seq = d->seq,
      .bad_list = "",
      .umask = d->umask,
  };
  info.columns = d->columns;
  info.n_columns = d->n_columns;
  if (d->replay) {
    lm_replay_shape(d->replay, &info.steps, &info.batch_rows, &info.seq);
    lm_replay_limits(d->replay, &info.max_id, &info.max_pos);
  } else {
    info.max_id = d->tokenizer->vocab - 1;
    for (int i = 0; i < d->n_lengths; i++)
      if (d->lengths[i].seq > info.max_pos)
        info.max_pos = (int32_t)d->lengths[i].seq - 1;
    info.read = (int64_t)d->corpus.read;
    info.bad = (int64_t)d->corpus.bad;
    info.bad_list = d->corpus.bad_list;
    for (uint64_t i = 0; i < d->lengths[0].index.n_sets; i++) {
      info.dropped += (int64_t)d->lengths[0].index.sets[i].dropped;
      info.cut += (int64_t)d->lengths[0].index.sets[i].cut;
    }
    info.from_cache = d->corpus.from_cache;
  }
  return info;
}

lm_data_part_info lm_data_part(const lm_data *d, int index) {
  const lm_data_rows *p = &d->parts[index];
  return (lm_data_part_info){p->name, p->docs, p->tokens, (int64_t)p->n};
}

int lm_data_part_find(const lm_data *d, const char *name) {
  for (int i = 0; i < d->n_parts; i++)
    if (!strcmp(d->parts[i].name, name))
      return i;
  return -1;
}

// With a mix, the key also depends on the source of each document.
static uint64_t corpus_key(const lm_corpus *c, int groups) {
  uint64_t parts[] = {c->tokens->root, lm_store_payload_key(c->docs)};
  uint64_t numbers = c->n_docs * (uint64_t)c->n_columns;
  uint64_t key = lm_hash(parts, sizeof parts, 0);
  if (numbers)
    key = lm_hash(c->values, numbers * sizeof *c->values, key);
  return groups > 1 ? lm_hash(c->source_first, ((size_t)groups + 1) * sizeof *c->source_first, key)
                    : key;
}

lm_status lm_data_key(const lm_data *d, int64_t batches, uint64_t *out) {
  *out = 0;
  if (d->replay)
    LM_TRY(lm_replay_key(d->replay, batches, out));
  else
    *out = corpus_key(&d->corpus, d->groups);
  *out += !*out;
  return NULL;
}

lm_status lm_data_unchanged(const lm_data *d) {
  if (d->replay)
    return lm_replay_unchanged(d->replay);
  for (int i = 0; i < d->n_lengths; i++)
    LM_TRY(lm_store_unchanged(d->lengths[i].index.store));
  return lm_corpus_unchanged(&d->corpus);
}
