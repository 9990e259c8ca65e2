#include "daemon/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int least_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level least)
{
    least_level = (int)least;
}

void log_at(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    static const int journal_priorities[] = {7, 6, 4, 3};
    if ((int)level < least_level)
        return;
    int saved_errno = errno;
    char line[4096];
    int n;
    if (getenv("JOURNAL_STREAM")) {
        n = snprintf(line, sizeof line, "<%d>", journal_priorities[level]);
    } else {
        struct timespec now;
        struct tm utc;
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &utc);
        n = (int)strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
        n += snprintf(line + n, sizeof line - (size_t)n, ".%03ldZ %s ", now.tv_nsec / 1000000,
                      names[level]);
    }
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    n += body < 0 ? 0 : body;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    for (int i = 0; i < n; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0) {
        /* nowhere left to say it */
    }
    errno = saved_errno;
}
