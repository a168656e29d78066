#!/bin/bash
# Puts the tables of `pretrain_gpt --help-flags=markdown` between README.md's <!-- flags --> and <!-- /flags -->.
set -euo pipefail
cd "$(dirname "$0")/.."

tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
"${1:-build/release/bin/pretrain_gpt}" --help-flags=markdown >"$tables"
for mark in '<!-- flags -->' '<!-- /flags -->'; do
  if ! grep -qxF "$mark" README.md; then
    echo "update_readme_flags: README.md has no line $mark" >&2
    exit 1
  fi
done
sed -i -e '/^<!-- flags -->$/,/^<!-- \/flags -->$/{/^<!-- flags -->$/{p;r '"$tables"'
};/^<!-- \/flags -->$/p;d}' README.md
