// port.h - columns of a batch (columns.def), and arguments and results of functions (ports.def).
#ifndef LM_CONTRACT_PORT_H
#define LM_CONTRACT_PORT_H
#include "contract/arena.h"
#include "contract/dtype.h"

typedef enum {
#define COLUMN(ID, ...) LM_COLUMN_##ID,
#include "contract/columns.def"
  LM_COLUMNS
} lm_column_id;
typedef struct lm_column_info {
  const char *name;
  lm_dtype dtype;
  int32_t min; // smallest valid value, which padding has
  bool is_index;
} lm_column_info;
enum {
  LM_COLUMN_BYTES = 4 // of an element, in every column
};
extern const lm_column_info lm_column_table[LM_COLUMNS];
lm_column_id lm_column_find(const char *name); // LM_COLUMNS: no column

// Further columns are named by the program: parameters of `loss` beside the batch, and of `apply`
// behind tok, pos and seg. Their argument is named "data.NAME"; the first axis is that of rows.
// What their values belong to:
typedef enum {
  LM_COLUMN_OF_POSITIONS, // [rows, seq]
  LM_COLUMN_OF_DOCUMENTS, // [rows, n]: the n documents of a row
  LM_COLUMN_OF_ROWS       // other axes
} lm_column_of;
extern const char LM_COLUMN_PREFIX[];            // "data."
const char *lm_column_name_of(const char *port); // NULL: not an argument for such a column
// int [rows, seq]: 1 at the positions of a document up to the first one of weight, 0 behind. A
// position of the prompt may depend on all positions of it.
bool lm_column_is_prompt(const char *name); // as the program names it
// The tokens of the sources of a row, their positions in their source, and the document that each
// belongs to: int [rows, m].
typedef enum {
  LM_SOURCE_COLUMN_IDS, // "source"
  LM_SOURCE_COLUMN_POS, // "source_pos"
  LM_SOURCE_COLUMN_SEG, // "source_seg"; padding is -1
  LM_SOURCE_COLUMNS
} lm_source_column;
extern const char *const lm_source_column_names[LM_SOURCE_COLUMNS];
lm_source_column lm_source_column_find(const char *name); // LM_SOURCE_COLUMNS: another column
// The output of `encode` in the function `probe`, instead of logits: a position of it may depend
// on its whole document.
#define LM_PROBE_ENCODED "encoded"

// What the memory of a port holds (ports.def).
typedef enum {
  LM_ROLE_COLUMN,
  LM_ROLE_SCALAR,
  LM_ROLE_TABLE,
  LM_ROLE_LOGITS,
  LM_ROLE_OTHER,
  LM_ROLE_PARAM,
  LM_ROLE_GRAD,
  LM_ROLE_STATE,
  LM_ROLE_COPY,
  LM_ROLES
} lm_port_role;
lm_arena_id lm_role_arena(lm_port_role role);
// As in the text of a plan: "param", "grad", "state", "copy"; NULL for the roles of other arenas.
extern const char *const lm_role_names[LM_ROLES];
typedef enum {
#define PORT(ID, ...) LM_PORT_##ID,
#include "contract/ports.def"
  LM_PORTS // a port that the program names
} lm_port_id;
typedef struct lm_port_info {
  const char *name;
  lm_port_role role;
  lm_dtype dtype;
} lm_port_info;
extern const lm_port_info lm_port_table[LM_PORTS];
lm_port_id lm_port_find(const char *name); // LM_PORTS: the program names it
#endif
