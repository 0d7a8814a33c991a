#!/usr/bin/env python3
"""mkimage.py OUT.tar REF ENTRYPOINT_JSON PATH=SOURCE...: a docker-archive of one layer, for `ctr images import`.

SOURCE is a file to copy, or `->/target` for a symbolic link. No registry is needed, nor a builder.
"""
import hashlib, io, json, os, sys, tarfile

out, ref, entrypoint, files = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]


def add(tar, name, data=None, mode=0o755, **fields):
    info = tarfile.TarInfo(name)
    info.mode, info.size = mode, len(data or b"")
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data) if data is not None else None)


layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as tar:
    made = set()

    def folder(path, mode=0o755):
        if path and path not in made:
            folder(os.path.dirname(path))
            made.add(path)
            add(tar, path, mode=mode, type=tarfile.DIRTYPE)

    for name in ("tmp", "etc", "proc", "sys", "dev", "root"):
        folder(name, 0o1777 if name == "tmp" else 0o755)
    for item in files:
        path, source = item.split("=", 1)
        path = path.lstrip("/")
        folder(os.path.dirname(path))
        if source.startswith("->"):
            add(tar, path, type=tarfile.SYMTYPE, linkname=source[2:])
        else:
            with open(source, "rb") as f:
                add(tar, path, f.read())
layer = layer.getvalue()
digest = hashlib.sha256(layer).hexdigest()
config = json.dumps({
    "architecture": "amd64", "os": "linux",
    "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], **entrypoint},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}, "history": [{"created_by": "mkimage"}],
}).encode()
name = hashlib.sha256(config).hexdigest() + ".json"
manifest = json.dumps([{"Config": name, "RepoTags": [ref], "Layers": [digest + "/layer.tar"]}]).encode()
with tarfile.open(out, "w") as tar:
    for path, data in ((name, config), (digest + "/layer.tar", layer), ("manifest.json", manifest)):
        add(tar, path, data, mode=0o644)
