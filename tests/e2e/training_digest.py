#!/usr/bin/env python3
"""The digest of what a checkpoint holds: SHA-256 over names, types, shapes and bytes of its tensors in order of
names, whatever else the files say and however the tensors are spread over them.

    training_digest.py CHECKPOINT_DIR
"""
import hashlib
import json
import pathlib
import struct
import sys

tensors = {}
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_bytes])
    header.pop("__metadata__", None)
    for name, facts in header.items():
        begin, end = (8 + header_bytes + offset for offset in facts["data_offsets"])
        assert name not in tensors, name
        tensors[name] = (facts["dtype"], facts["shape"], data[begin:end])
assert tensors, f"no tensor in {sys.argv[1]}"
digest = hashlib.sha256()
for name, (dtype, shape, values) in sorted(tensors.items()):
    digest.update(f"{name} {dtype} {shape} ".encode())
    digest.update(values)
print(digest.hexdigest()[:32])
