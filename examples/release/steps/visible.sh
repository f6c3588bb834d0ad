#!/usr/bin/env bash
# Says whether the release can be seen where users would look.
if [ -s "registry/$1/release-$VERSION.tar.gz" ]; then echo yes; else sleep 0.5; echo no; fi
