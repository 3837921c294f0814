#!/bin/sh
# What a coordinator and its workers show each other and their clients, made once, by whoever has the coordinator's volume:
#   gradsync-make-keys DATA_DIR KEYS [NAME…]
# KEYS/worker.key: with it workers are let in, as many as have it; KEYS/ca.pem: by it clients know the server. In DATA_DIR/tls:
# the server's certificate, of its own making, for these names (default: localhost, coordinator), and its key. Put your own in their place where
# you have them: they are read again within a second.
set -eu
umask 077
data=$1 keys=$2
shift 2
[ $# -gt 0 ] || set -- localhost coordinator
mkdir -p "$data/tls"
if [ ! -s "$data/tls/key.pem" ]; then
  names=IP:127.0.0.1
  for name in "$@"; do names=$names,DNS:$name; done
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$1" -addext "subjectAltName=$names" \
    -keyout "$data/tls/key.pem.new" -out "$data/tls/cert.pem" 2>/dev/null
  mv "$data/tls/key.pem.new" "$data/tls/key.pem"
fi
cp "$data/tls/cert.pem" "$keys/ca.pem"
[ -s "$keys/worker.key" ] || gradsync key new workers --role worker --pool --data-dir "$data" --out "$keys/worker.key"
