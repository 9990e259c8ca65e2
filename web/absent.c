/* In the place of the dashboard, where the build left it out. */
#include "web/page.h"

const struct page_file page_files[1];
const size_t page_files_count = 0;
