"""Writes store_schema.inc: the schema's SQL files, in order, as C texts.

usage: embed.py OUTPUT SCHEMA.sql [0002.sql ...]
"""
import pathlib
import sys


def quoted(line):
    return '    "' + line.replace('\\', '\\\\').replace('"', '\\"') + '\\n"\n'


def main(output, *sources):
    with open(output, 'w', encoding='utf-8') as out:
        out.write('static const char *const store_scripts[] = {\n')
        for source in sources:
            for line in pathlib.Path(source).read_text(encoding='utf-8').splitlines():
                out.write(quoted(line))
            out.write('    ,\n')
        out.write('};\n')
        out.write(f'const struct store_schema store_schema = {{store_scripts, {len(sources)}}};\n')


main(*sys.argv[1:])
