#!/bin/sh
# Does what its last argument says.
for last; do :; done
case $last in
serve) echo ready && exec tail -f /dev/null ;;
end) echo ready && echo "at the end" >&2 && exit 3 ;;
refuse) echo "no such thing" >&2 && exit 2 ;;
esac
