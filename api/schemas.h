/* The JSON of the API as JSON Schemas (2020-12), named as the route table names them. */
#ifndef API_SCHEMAS_H
#define API_SCHEMAS_H

#include <cjson/cJSON.h>

/* An object of all of them, which refer to each other as "#/components/schemas/NAME". NULL when
 * memory is short. */
cJSON *schemas_all(void);

#endif
