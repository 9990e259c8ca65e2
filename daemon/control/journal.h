/* Log lines as entries of systemd's journal. */
#ifndef CONTROL_JOURNAL_H
#define CONTROL_JOURNAL_H

/* If standard error is the journal, log lines go there as entries with fields: PRIORITY, MESSAGE,
 * and DLLMD_JOB, DLLMD_ATTEMPT, DLLMD_RANK, DLLMD_TASK as far as a line is about one. Before there
 * are threads. */
void journal_open(void);

#endif
