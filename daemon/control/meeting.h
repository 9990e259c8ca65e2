/* exchange(key, bytes): each member posts, all are answered when the set is complete. A complete
 * set is saved beside the journals before anybody is answered, so that a daemon that starts again
 * gives the ranks that were not answered yet the same set as those that were. */
#ifndef CONTROL_MEETING_H
#define CONTROL_MEETING_H

#include <cjson/cJSON.h>

#include "daemon/control/control.h"

/* An "exchange" message of a member: answered now, later, or with an "error" message. */
void meeting_post(struct member *m, const cJSON *message);
/* Reads the sets that were saved in the run's directory. Blocking; at start. */
struct err *meeting_load(struct run *r);
/* Removes what was saved, when the run is over. Blocking. */
struct err *meeting_remove(struct run *r);
void meeting_free(struct meeting_sets *sets);

#endif
