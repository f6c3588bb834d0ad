#!/usr/bin/env bash
# Tells whoever reads `registry/news`.
mkdir -p registry && echo "$1" >>registry/news
