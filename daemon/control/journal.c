#include "daemon/control/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define FIELDS 6
#define FIELD_BYTES 48

struct entry {
    struct iovec fields[FIELDS];
    int count;
    char numbers[FIELDS][FIELD_BYTES];
};

static void add_number(struct entry *e, const char *name, long long value)
{
    char *text = e->numbers[e->count];
    snprintf(text, FIELD_BYTES, "%s=%lld", name, value);
    e->fields[e->count++] = (struct iovec){text, strlen(text)};
}

static bool send_line(enum log_level level, const struct log_subject *subject, const char *text)
{
    static const int priorities[] = {7, 6, 4, 3};
    char message[4096 + sizeof "MESSAGE="];
    snprintf(message, sizeof message, "MESSAGE=%s", text);
    struct entry e = {.fields[0] = {message, strlen(message)}, .count = 1};
    add_number(&e, "PRIORITY", priorities[level]);
    if (subject && subject->job)
        add_number(&e, "DLLMD_JOB", subject->job);
    if (subject && subject->attempt)
        add_number(&e, "DLLMD_ATTEMPT", subject->attempt);
    if (subject && subject->task)
        add_number(&e, "DLLMD_TASK", subject->task);
    if (subject && subject->rank >= 0)
        add_number(&e, "DLLMD_RANK", subject->rank);
    return sd_journal_sendv(e.fields, e.count) >= 0;
}

void journal_open(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;
    /* It may be inherited by somebody whose standard error is something else. */
    if (stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
        fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode)
        log_set_sink(send_line);
}
