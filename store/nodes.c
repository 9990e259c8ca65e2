#include "store/nodes.h"

#include "store/sql.h"

#define SELECT                                                                                     \
    "SELECT id, name, address, version, draining, cpu_slots, gpu_slots, resources_json,"           \
    " registered_s, seen_s FROM nodes "

static void read_node(struct store_rows *rows, struct store_node *node)
{
    *node = (struct store_node){
        .id = store_int(rows, 0),
        .name = store_text(rows, 1),
        .address = store_text(rows, 2),
        .version = store_text(rows, 3),
        .draining = store_int(rows, 4),
        .cpu_slots = store_int(rows, 5),
        .gpu_slots = store_int(rows, 6),
        .resources_json = store_text(rows, 7),
        .registered_s = store_real(rows, 8),
        .seen_s = store_real(rows, 9),
    };
}

static struct err *no_node(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no node %lld", (long long)id);
}

struct err *store_node_register(struct store_tx *tx, const struct store_node *n, double now_s,
                                int64_t *id)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "register a node",
                    "INSERT INTO nodes (name, address, version, cpu_slots, gpu_slots,"
                    " resources_json, registered_s, seen_s) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)"
                    " ON CONFLICT (name) DO UPDATE SET address = excluded.address,"
                    " version = excluded.version, cpu_slots = excluded.cpu_slots,"
                    " gpu_slots = excluded.gpu_slots, resources_json = excluded.resources_json,"
                    " seen_s = excluded.seen_s RETURNING id",
                    V_TEXT(n->name), V_TEXT(n->address), V_TEXT(n->version), V_INT(n->cpu_slots),
                    V_INT(n->gpu_slots), V_TEXT(n->resources_json), V_REAL(now_s)));
    while (store_next(&rows))
        *id = store_int(&rows, 0);
    return store_finish(&rows);
}

struct err *store_node_seen(struct store_tx *tx, int64_t id, const char *resources_json,
                            double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a node's heartbeat", &changed,
                     "UPDATE nodes SET seen_s = ?, resources_json = coalesce(?, resources_json)"
                     " WHERE id = ?",
                     V_REAL(now_s), V_TEXT(resources_json), V_INT(id)));
    return changed ? NULL : no_node(id);
}

struct err *store_node_set_draining(struct store_tx *tx, int64_t id, bool draining)
{
    int64_t changed;
    TRY(store_change(tx, "drain a node", &changed, "UPDATE nodes SET draining = ? WHERE id = ?",
                     V_INT(draining), V_INT(id)));
    return changed ? NULL : no_node(id);
}

struct err *store_node_get(struct store_tx *tx, int64_t id, struct store_node *node)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read a node", SELECT "WHERE id = ?", V_INT(id)));
    bool found = store_next(&rows);
    if (found)
        read_node(&rows, node);
    TRY(store_finish(&rows));
    return found ? NULL : no_node(id);
}

struct err *store_nodes_list(struct store_tx *tx, struct store_nodes *nodes)
{
    *nodes = (struct store_nodes){0};
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list nodes", SELECT "ORDER BY name"));
    while (store_next(&rows)) {
        struct store_node *node = STORE_PUSH(&rows, nodes);
        if (node)
            read_node(&rows, node);
    }
    return store_finish(&rows);
}
