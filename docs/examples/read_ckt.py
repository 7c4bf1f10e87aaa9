"""Print the rows of a closed .ckt segment with only pyarrow: python read_ckt.py 0.ckt"""

import json
import struct
import sys

import pyarrow as pa

data = pa.memory_map(sys.argv[1]).read_buffer()
if data[:8].to_pybytes() != b"\x89CKT\r\n\x1a\n" or data[-8:].to_pybytes() != b"CKT-END\n":
    raise SystemExit("not a closed .ckt segment")
offset, relations = 8, {}
while offset < data.size - 32:  # the trailer
    kind, _, _, crc32c, length = struct.unpack_from("<BBHIQ", data, offset)
    payload = data[offset + 16 : offset + 16 + length]
    if kind == 2:  # relation: id, length of the JSON, the JSON, the Arrow schema
        number, text = struct.unpack_from("<II", payload)
        relation = json.loads(payload[8 : 8 + text].to_pybytes())
        relations[number] = relation, pa.ipc.read_schema(payload[8 + text :])
    elif kind == 3:  # rows: 48 bytes of numbers, an Arrow record batch
        relation, schema = relations[struct.unpack_from("<I", payload)[0]]
        batch = pa.ipc.read_record_batch(payload[48:], schema)
        columns = [batch[name] for name in ("gsn", "op", "after", "before")]
        for gsn, op, after, before in zip(*columns, strict=True):
            place = f"{relation['schema']} {relation['name']}"
            sys.stdout.write(f"{gsn} {chr(op.as_py())} {place} {after} {before}\n")
    offset += 16 + length
