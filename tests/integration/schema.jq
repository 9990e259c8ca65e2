# Whether a value is what a JSON Schema (2020-12) says, for the keywords that the API's description
# uses; another keyword is a mistake, too. Each line of the output is one.
#
#   jq -r -L tests/integration --slurpfile doc openapi.json 'include "schema";
#      mistakes($doc[0]; {"$ref": "#/components/schemas/Job"}; "")'
def is($name):
    if $name == "integer" then type == "number" and . == floor else type == $name end;

def mistakes($doc; $s; $at):
    . as $v |
    def say($what): "\($at): \($what): \($v | tojson | .[0:80])";
    if $s | has("$ref") then
        ($s["$ref"] | ltrimstr("#/") | split("/")) as $path |
        ($doc | getpath($path)) as $target |
        if $target == null then say("no schema " + $s["$ref"]) else mistakes($doc; $target; $at) end
    else
        ($s | keys - ["type", "enum", "const", "oneOf", "properties", "required",
            "additionalProperties", "items", "minimum", "maximum", "exclusiveMinimum",
            "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "format",
            "description", "title", "default"] |
            if . == [] then empty else say("unknown keywords \(.)") end),
        (if ($s | has("type")) and ([$s.type] | flatten | any(. as $t | $v | is($t)) | not)
            then say("is not \($s.type)") else empty end),
        (if ($s | has("enum")) and ([$v] | inside($s.enum) | not) then say("is none of \($s.enum)")
            else empty end),
        (if ($s | has("const")) and $v != $s.const then say("is not \($s.const)") else empty end),
        (if $s | has("oneOf") then
            ([$s.oneOf[] as $o | [mistakes($doc; $o; $at)] | select(. == [])] | length) as $n |
            if $n == 1 then empty else say("is \($n) of oneOf") end else empty end),
        (if ($v | type) == "number" then
            (if ($s.minimum // $v) > $v then say("below \($s.minimum)") else empty end),
            (if ($s.maximum // $v) < $v then say("above \($s.maximum)") else empty end),
            (if ($s | has("exclusiveMinimum")) and $v <= $s.exclusiveMinimum
                then say("not above \($s.exclusiveMinimum)") else empty end),
            (if ($s | has("exclusiveMaximum")) and $v >= $s.exclusiveMaximum
                then say("not below \($s.exclusiveMaximum)") else empty end)
        elif ($v | type) == "string" then
            ($v | utf8bytelength) as $n |
            (if ($s.minLength // 0) > $n or ($s.maxLength // $n) < $n then say("length") else empty end),
            (if $s.format == "date-time" and
                ($v | test("^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z$") | not)
                then say("no time") else empty end)
        elif ($v | type) == "array" then
            (if ($s.minItems // 0) > ($v | length) or ($s.maxItems // ($v | length)) < ($v | length)
                then say("length") else empty end),
            (if $s | has("items") then
                $v | to_entries[] | .key as $k | .value | mistakes($doc; $s.items; "\($at)/\($k)")
                else empty end)
        elif ($v | type) == "object" then
            (($s.required // []) - ($v | keys) | if . == [] then empty else say("lacks \(.)") end),
            ($v | to_entries[] | .key as $k | .value |
                if ($s.properties // {}) | has($k) then
                    mistakes($doc; $s.properties[$k]; "\($at)/\($k)")
                elif $s.additionalProperties == false then "\($at): has \($k)"
                elif ($s.additionalProperties | type) == "object" then
                    mistakes($doc; $s.additionalProperties; "\($at)/\($k)")
                else empty end)
        else empty end)
    end;
