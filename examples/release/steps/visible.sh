#!/usr/bin/env bash
# Prints whether users can see the release.
if [ -s "registry/$1/release-$VERSION.tar.gz" ]; then echo yes; else sleep 0.5; echo no; fi
