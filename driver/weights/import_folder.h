// import_folder.h - whether the folder that an import writes to holds something else.
//
// program.json of an imported model says what the import wrote:
//   {"main": "../imported.lm", "recipe": "Tune", "set": [], "imported": "HASH"}
// imported: a hash of imported.lm.
#ifndef LM_DRIVER_IMPORT_FOLDER_H
#define LM_DRIVER_IMPORT_FOLDER_H
#include "runtime/base/base.h"

lm_status lm_import_manifest_write(const char *dir, const lm_buf *text);
// *out_own: an earlier import wrote the folder, and imported.lm is as it was written. LM_USER: the
// folder is a run's, or imported.lm was edited.
lm_status lm_import_folder_check(const char *dir, bool *out_own);
lm_status lm_import_refuse(const char *dir, const char *file); // the error: dir holds this file
#endif
