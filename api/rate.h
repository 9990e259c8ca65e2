/* How many requests an address may make. Each has a bucket that fills with time; a request takes
 * from it, one with a wrong token takes more. The table is of fixed size: a new address takes the
 * place of the fullest bucket near its own, which loses nothing that matters. */
#ifndef API_RATE_H
#define API_RATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define RATE_BUCKETS 1024
#define RATE_NEAR 8
#define RATE_BURST_S 10.0 /* of an address that was quiet */

struct rate {
    double per_s; /* 0: no limit */
    struct rate_bucket {
        uint8_t address[16];
        double level, time_s; /* level at time_s; time 0: the bucket is nobody's */
    } buckets[RATE_BUCKETS];
};

/* False: it must wait *wait_s seconds, and nothing is taken. `now_s` is monotonic, from above 0.
 * IPv6 counts by /64. */
bool rate_take(struct rate *rate, const struct sockaddr *from, double now_s, double *wait_s);
/* Takes `cost` besides, down to nothing. */
void rate_charge(struct rate *rate, const struct sockaddr *from, double now_s, double cost);

#endif
