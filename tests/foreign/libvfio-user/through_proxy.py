"""A plugin of pytest for libvfio-user's tests: their messages reach the library through peerbar-proxy.

Each test is server and client in one thread: it sends a message, then has the library execute one. The proxy sends
further messages, and answers some itself. So the library here executes messages until the reply is there.
"""

import errno
import os
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time

import libvfio_user as lvu
import pytest

PROXY = os.environ["PEERBAR_PROXY"]
SECONDS = 2

lvu.lib.vfu_get_poll_fd.argtypes = (lvu.c.c_void_p,)
real = {name: getattr(lvu, name) for name in ("vfu_realize_ctx", "vfu_attach_ctx", "vfu_run_ctx", "vfu_destroy_ctx")}
real["connect"] = lvu.Client.connect
real["vfu_create_ctx"] = lvu.vfu_create_ctx
ctx = None
proxy = None


class Client(socket.socket):
    """A connection to a proxy, which counts the messages that a test sends."""
    sent = 0

    def send(self, *args):
        Client.sent += 1
        return super().send(*args)

    def sendmsg(self, *args):
        Client.sent += 1
        return super().sendmsg(*args)


def split(sock):
    """Splits a session into two sockets, as libvfio-user's twin sockets: our requests, and those of the server."""
    # The tests take what they receive at once for one message.
    (requests, ours), (served, theirs) = [socket.socketpair(type=socket.SOCK_SEQPACKET) for _ in range(2)]
    sock.settimeout(None)

    def receive():
        stream = sock.makefile("rb")
        while header := stream.read(16):
            _, _, size, flags, _ = struct.unpack("HHIII", header)
            is_reply = flags & lvu.VFIO_USER_F_TYPE == lvu.VFIO_USER_F_TYPE_REPLY
            (ours if is_reply else theirs).sendall(header + stream.read(size - 16))

    def send(end):
        while True:
            message, descriptors, _, _ = socket.recv_fds(end, lvu.SERVER_MAX_MSG_SIZE, 16)
            if not message:
                return
            socket.send_fds(sock, [message], descriptors)

    for job in (receive, lambda: send(ours), lambda: send(theirs)):
        threading.Thread(target=job, daemon=True).start()
    return requests, served


class Proxy:
    """A proxy of the server in this process, and the client's connection to it."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        path = self.folder.name + "/proxy"
        self.log = open(self.folder.name + "/log", "w+")
        arguments = [PROXY, "--socket-path", path, "--server", lvu.SOCK_PATH]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log)
        self.is_attached = False
        ended = time.monotonic() + SECONDS
        while not self.is_attached and time.monotonic() < ended:
            self.is_attached = lvu.lib.vfu_attach_ctx(ctx) == 0
        is_ready = self.execute_until(self.process.stdout) == 0
        self.is_ready = is_ready and self.process.stdout.readline() == b"ready\n"
        if self.is_ready:
            self.client = Client(socket.AF_UNIX, socket.SOCK_STREAM)
            self.client.connect(path)
            self.client.settimeout(SECONDS)

    def execute_until(self, readable):
        """Has the library execute messages until there is something to read, or an error. Returns the error."""
        ended = time.monotonic() + SECONDS
        while time.monotonic() < ended:
            server = lvu.lib.vfu_get_poll_fd(ctx)
            ready, _, _ = select.select([readable, server], [], [], SECONDS)
            if server in ready and lvu.lib.vfu_run_ctx(ctx) < 0:
                return lvu.c.get_errno()
            if readable in ready:
                return 0
        return errno.ETIMEDOUT

    def end(self):
        """Ends the session with the library, after the proxy has reset the device."""
        if self.process.poll() is None:
            self.process.terminate()
            while self.process.poll() is None:
                if select.select([lvu.lib.vfu_get_poll_fd(ctx)], [], [], 0.01)[0]:
                    lvu.lib.vfu_run_ctx(ctx)
        self.log.seek(0)
        print("proxy: " + self.log.read())


def end():
    global proxy
    if proxy is not None:
        proxy.end()
        proxy = None


def answer(_, buffer, count, __, is_write):
    """The registers of a test that has none: the proxy reads all of configuration space."""
    if not is_write:
        lvu.c.memset(buffer, 0, count)
    return count


def create(*args, flags=0, **keywords):
    return real["vfu_create_ctx"](*args, flags=flags | lvu.LIBVFIO_USER_FLAG_ATTACH_NB, **keywords)


def realize(realized):
    global ctx
    ctx = realized
    return real["vfu_realize_ctx"](realized)


def connect():
    global proxy
    end()
    proxy = Proxy()
    assert proxy.is_ready, "the proxy does not serve"
    return proxy.client


def connect_client(client, connecting, capabilities={}):
    sock = real["connect"](client, connecting, capabilities)
    if "twin_socket" in capabilities.get("capabilities", {}):
        # A device's requests pass its port only while it is a bus master.
        command = struct.pack("<H", 6)
        lvu.write_region(ctx, sock, lvu.VFU_PCI_DEV_CFG_REGION_IDX, offset=4, count=2, data=command)
        client.sock, client.client_cmd_socket = split(sock)
        proxy.client = client.sock
    return client.sock


def attach(attached, expect=0):
    # The proxy is attached already, and answers the client's VERSION itself.
    if proxy is None:
        return real["vfu_attach_ctx"](attached, expect)
    lvu.c.set_errno(expect)
    return -1 if expect else 0


def run(running, expect=0):
    if proxy is None:
        return real["vfu_run_ctx"](running, expect)
    if expect == errno.ENOTCONN:
        return end()
    error = proxy.execute_until(proxy.client)
    if error == errno.ETIMEDOUT and expect == 0:
        return 0
    assert error == expect, os.strerror(error)
    lvu.c.set_errno(error)
    return -1 if error else 0


def destroy(destroyed):
    if destroyed == ctx:
        end()
    real["vfu_destroy_ctx"](destroyed)


lvu.pci_region_cb = answer
lvu.vfu_create_ctx = create
lvu.vfu_realize_ctx = realize
lvu.vfu_attach_ctx = attach
lvu.vfu_run_ctx = run
lvu.vfu_destroy_ctx = destroy
lvu.connect_sock = connect
lvu.Client.connect = connect_client


# What a test needs that the proxy does not pass on, or knows only of the library, by file or test.
NOT_RUN = {
    "test_destroy": "it looks into the library",
    "test_device_get_region_io_fds": "the proxy has no DEVICE_GET_REGION_IO_FDS",
    "test_dirty_pages": "the proxy has no DEVICE_FEATURE",
    "test_migration": "the proxy has no DEVICE_FEATURE",
    "test_shadow_ioeventfd": "the proxy has no DEVICE_GET_REGION_IO_FDS",
    "test_allowed_funcs_in_quiesced_migration": "the proxy has no DEVICE_FEATURE",
    "test_allowed_funcs_in_quiesced_migration_busy": "the proxy has no DEVICE_FEATURE",
    "test_reply_fail_quiesce_busy": "the proxy has no DEVICE_FEATURE",
    "test_disconnected_socket_quiesce_busy": "the proxy stays connected to the library",
    "test_dma_map_busy_reply_fail": "the proxy stays connected to the library",
    "test_dma_map_reply_fail": "the proxy stays connected to the library",
}

# Tests that must fail, because the proxy answers otherwise than the library.
FAILS = {
    "test_request_errors::test_bad_command": "the error is ENOTSUP, not EINVAL",
    "test_device_set_irqs_bad_fds_for_DATA_BOOL": "descriptors without a use are closed",
    "test_device_set_irqs_bad_fds_for_DATA_NONE": "descriptors without a use are closed",
    "test_dma_region_too_many": "neighbouring mappings are joined",
    "test_dma_unmap_all_invalid_flags": "the error is ENOTSUP, not EINVAL",
    "test_dma_unmap_bad_argsz2": "a longer argsz is accepted",
    "test_dma_unmap_dirty_bad_argsz": "the error is ENOTSUP, not EINVAL",
    "test_dma_unmap_dirty_not_tracking": "the error is ENOTSUP, not EINVAL",
    "test_dma_unmap_invalid_addr": "memory that is not mapped can be unmapped",
    "test_invalid_json_bad_max_fds": "unusable capabilities are ignored",
    "test_invalid_json_bad_max_fds2": "unusable capabilities are ignored",
    "test_invalid_json_bad_max_fds3": "unusable capabilities are ignored",
    "test_invalid_json_bad_migration_object": "unusable capabilities are ignored",
    "test_invalid_json_bad_pgsize": "unusable capabilities are ignored",
    "test_invalid_json_bad_pgsize2": "unusable capabilities are ignored",
    "test_invalid_json_missing_NUL": "the NUL may be missing",
    "test_irq_state": "only vectors that are said to be maskable can be masked",
    "test_too_large": "the session ends without a reply",
    "test_too_small": "the session ends without a reply",
    "test_unsolicited_reply": "the reply is ignored",
    "test_valid_negotiate_no_json": "the version is 0.0, not 0.1",
}
# Flags of DMA_MAP that QEMU does not send: MMAP and FILE_IO.
NEW_FLAGS = ("[4]", "[8]")


def pytest_collection_modifyitems(items):
    for item in items:
        file, name = item.path.stem, item.originalname
        not_run = NOT_RUN.get(name) or NOT_RUN.get(file)
        fails = FAILS.get(name) or FAILS.get(f"{file}::{name}")
        if file == "test_sgl_read_write" and item.name.endswith(NEW_FLAGS):
            fails = "the flags MMAP and FILE_IO of DMA_MAP are unknown"
        if not_run:
            item.add_marker(pytest.mark.skip(reason=not_run))
        elif fails:
            item.add_marker(pytest.mark.xfail(reason=fails, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    Client.sent = 0
    result = yield
    if Client.sent == 0:
        pytest.skip("it sends no message")
    return result
