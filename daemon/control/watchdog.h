/* Telling systemd that this daemon is alive. */
#ifndef CONTROL_WATCHDOG_H
#define CONTROL_WATCHDOG_H

#include "daemon/control/control.h"

/* Does nothing unless systemd asks for it (WatchdogSec=). ERR_NO_MEMORY. Loop thread. */
struct err *watchdog_open(struct control *c);
/* Nothing may be pending in c->async. */
void watchdog_close(struct control *c);

#endif
