/* The places by which others find this daemon: its state directory, its runtime directory with the
 * workers' socket and the file `url`. Nobody else may use them meanwhile, and they must go on
 * leading to us: somebody may remove or replace them under a daemon that lives. Loop thread. */
#ifndef CONTROL_PLACES_H
#define CONTROL_PLACES_H

#include "daemon/control/control.h"

/* Makes the directories and locks them. places_release() even after an error. */
struct err *places_take(const struct config *config, struct places **out);
/* The store has been opened: the file that it has open is the one to be found from now on. */
struct err *places_opened_store(struct places *places);
/* Listens for workers at c->socket_path, writes `url`, and looks after both from now on. */
struct err *places_open(struct places *places, struct control *c,
                        const struct line_handlers *handlers);
/* Looks now, and mends what can be mended. NULL: all is well; otherwise a sentence without its full
 * stop, which stays until the next look. */
const char *places_fault(struct places *places);
/* What the last look found. */
bool places_well(const struct places *places);
/* No look after this one. */
void places_close(struct places *places);
/* Removes `url`, unlocks the directories, frees. The loop is closed. NULL is allowed. */
void places_release(struct places *places);

#endif
