#!/bin/sh
# Runs a compiler's command. What ptxas says of registers and spills goes beside the object, for
# tests/gpu/registers.py; all else is passed on.
object=
previous=
for word in "$@"; do
  [ "$previous" = -o ] && object=$word
  previous=$word
done
[ -n "$object" ] || exec "$@"
said=$object.said
"$@" 2>"$said"
code=$?
ours='^ptxas info|^ *[0-9]+ bytes stack frame|^Compile time'
grep -E "$ours" "$said" >"$object.ptxas"
grep -vE "$ours" "$said" >&2
rm -f "$said"
exit $code
