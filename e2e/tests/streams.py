"""An HTTP/1.1 server whose answers take their time or change the protocol: python3 streams.py ADDRESS PORT."""
import socket, sys, threading, time


def chunk(text):
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(s):
    f = s.makefile("rb")
    head = []
    while True:
        line = f.readline()
        if line in (b"\r\n", b""):
            break
        head.append(line.decode().strip())
    if not head:
        return
    path = head[0].split()[1]
    fields = {k.lower(): v.strip() for k, v in (h.split(":", 1) for h in head[1:])}
    print(head[0], fields.get("upgrade", "-"), flush=True)
    if path == "/events":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(5):
            s.sendall(chunk("data: %d\n\n" % i))
            time.sleep(0.3)
        s.sendall(b"0\r\n\r\n")
    elif path == "/echo" and "upgrade" in fields:
        s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n" % fields["upgrade"].encode())
        while True:
            data = s.recv(4096)
            if not data:
                break
            s.sendall(data.upper())
    elif path == "/rogue":
        s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nHTTP/1.1 200 OK\r\n\r\nrogue")
        time.sleep(0.5)
    elif path == "/cut":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
    elif path == "/nothing":
        s.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    elif path == "/upload":
        if fields.get("expect", "").lower() == "100-continue":
            s.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        n = len(f.read(int(fields["content-length"])))
        body = b"got %d" % n
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    s.close()


listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64)
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
