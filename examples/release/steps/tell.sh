#!/usr/bin/env bash
# Appends a message to `registry/news`.
mkdir -p registry && echo "$1" >>registry/news
