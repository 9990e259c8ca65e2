/* A program of the build: writes store_schema.inc, the schema's SQL files, in order, as C texts.
 *
 * usage: embed OUTPUT SCHEMA.sql [0002.sql ...]
 */
#include <stdio.h>
#include <stdlib.h>

static void quote(FILE *in, FILE *out)
{
    int c, last = '\n';
    while ((c = getc(in)) != EOF) {
        if (last == '\n')
            fputs("    \"", out);
        if (c == '\n')
            fputs("\\n\"\n", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else
            putc(c, out);
        last = c;
    }
    if (last != '\n')
        fputs("\"\n", out);
    fputs("    ,\n", out);
}

int main(int argc, char **argv)
{
    FILE *out = argc > 2 ? fopen(argv[1], "w") : NULL;
    if (!out) {
        fputs("embed: cannot write the output\n", stderr);
        return EXIT_FAILURE;
    }
    fputs("static const char *const store_scripts[] = {\n", out);
    for (int i = 2; i < argc; i++) {
        FILE *in = fopen(argv[i], "r");
        if (!in) {
            perror(argv[i]);
            return EXIT_FAILURE;
        }
        quote(in, out);
        fclose(in);
    }
    fprintf(out, "};\nconst struct store_schema store_schema = {store_scripts, %d};\n", argc - 2);
    return fclose(out) ? EXIT_FAILURE : EXIT_SUCCESS;
}
