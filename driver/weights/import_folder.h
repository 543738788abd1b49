// import_folder.h - the record of an import, and whether the folder that it writes to holds
// something else.
//
// program.json of an imported model says what the import wrote:
//   {"main": "../imported.lm", "recipe": "Tune", "set": [], "imported": "HASH",
//    "tokenizer": {"tokenizer": "HASH", "tokenizer_config.json": "absent", …}}
// imported: a hash of imported.lm. tokenizer: the parts of tokenizer_files.h.
#ifndef LM_DRIVER_IMPORT_FOLDER_H
#define LM_DRIVER_IMPORT_FOLDER_H
#include "driver/fingerprint.h"

// text: of imported.lm.
lm_status lm_import_manifest_write(const char *dir, const lm_buf *text,
                                   const lm_fingerprint *tokenizer);
// The parts of the tokenizer that the import of `dir` recorded, in `a`; none if it is not the
// folder of an import, or of an import by an earlier version.
lm_status lm_import_tokenizer_read(lm_arena *a, const char *dir, lm_fingerprint *out);
// *out_own: an earlier import wrote the folder, and imported.lm is as it was written. LM_USER: the
// folder is a run's, or imported.lm was edited.
lm_status lm_import_folder_check(const char *dir, bool *out_own);
lm_status lm_import_refuse(const char *dir, const char *file); // the error: dir holds this file
#endif
