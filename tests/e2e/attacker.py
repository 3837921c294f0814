#!/usr/bin/env python3
"""Serves a page at any name and keeps what that page tells; or is a server that lets every page do what it likes, to see that it tries.
    attacker.py PAGE TOLD     the port goes to stdout; what is posted to /told into the file TOLD
    attacker.py --victim
As a browser's proxy it is an attacker's DNS: at one and the same name and port there is its page, and then what listens here at that port.
"""
import http.client, http.server, os, sys, urllib.parse

class Attacker(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b"", kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        cookie = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("cookie")
        if cookie and not is_victim:
            self.send_header("Set-Cookie", cookie[0] + "; Path=/")
        if is_victim:
            self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", "*"))
            self.send_header("Access-Control-Allow-Credentials", "true")
            self.send_header("Access-Control-Allow-Headers", "Content-Type")
            self.send_header("Access-Control-Allow-Methods", "GET, POST, DELETE")
        self.end_headers()
        self.wfile.write(body)
    def pass_on(self, port):
        """To this machine, with every header as the browser sends it."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        self.answer(answer.status, answer.read(), answer.getheader("Content-Type", ""))
    def is_passed_on(self):
        at = urllib.parse.urlsplit(self.path)
        if not at.netloc:
            return False
        self.path = at.path + ("?" + at.query if at.query else "")
        if at.path in ("/", "/told", "/favicon.ico"):
            return False
        self.pass_on(at.port)
        return True
    def do_GET(self):
        if is_victim:
            return self.answer(200, b"{}", "application/json")
        if self.is_passed_on():
            return
        is_page = self.path == "/" or self.path.startswith("/?")
        self.answer(200 if is_page else 404, open(sys.argv[1], "rb").read() if is_page else b"", "text/html")
    def do_POST(self):
        if self.is_passed_on():
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not is_victim and self.path == "/told":
            with open(sys.argv[2] + ".part", "wb") as file:
                file.write(body)
            os.replace(sys.argv[2] + ".part", sys.argv[2])
        self.answer(200)
    do_DELETE = do_OPTIONS = do_POST

is_victim = sys.argv[1] == "--victim"
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
print(server.server_port, flush=True)
server.serve_forever()
