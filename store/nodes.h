/* Nodes of the cluster; a daemon on its own is one. */
#ifndef STORE_NODES_H
#define STORE_NODES_H

#include "store/store.h"

struct store_node {
    int64_t id;
    const char *name;    /* unique */
    const char *address; /* URL of its API; NULL: this daemon */
    const char *version; /* of its dllmd */
    bool draining;       /* gets no new work */
    int64_t cpu_slots;
    int64_t gpu_slots;
    const char *resources_json; /* GPUs, memory: as it reported */
    double registered_s;
    double seen_s;
};

struct store_nodes {
    struct store_node *items;
    size_t count;
};

/* Writes it, or brings the one of that name up to date (draining and registered_s stay). Reads
 * name, address, version, cpu_slots, gpu_slots, resources_json. */
struct err *store_node_register(struct store_tx *tx, const struct store_node *node, double now_s,
                                int64_t *id);
/* A heartbeat; `resources_json` NULL keeps what is there. */
struct err *store_node_seen(struct store_tx *tx, int64_t id, const char *resources_json,
                            double now_s);
struct err *store_node_set_draining(struct store_tx *tx, int64_t id, bool draining);
struct err *store_node_get(struct store_tx *tx, int64_t id, struct store_node *node);
/* By name. */
struct err *store_nodes_list(struct store_tx *tx, struct store_nodes *nodes);

#endif
