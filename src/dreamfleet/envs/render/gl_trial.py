"""Tries to draw without a screen: `python gl_trial.py egl` or `osmesa`, in a process that a bad driver may end.

Prints one JSON object with what draws, or fails with the reason on the last line. Takes only the standard library, so
that it starts quickly and needs no package that draws.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_ubyte, c_void_p
from typing import Any

EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")
OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
GL_RENDERER, GL_RGBA, GL_UNSIGNED_BYTE = 0x1F01, 0x1908, 0x1401
EGL_PLATFORM_DEVICE, EGL_OPENGL_API, EGL_EXTENSIONS = 0x313F, 0x30A2, 0x3055
SOFTWARE = b"EGL_MESA_device_software"
MAX_DEVICES = 32
# Eight bits for each colour and alpha, a depth of 24, a stencil of 8, off screen, by OpenGL: what MuJoCo asks for.
CONFIG = (0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3021, 8, 0x3025, 24, 0x3026, 8, 0x3033, 1, 0x3040, 8, 0x3038)


class CannotDraw(Exception):
    pass


def load(names: tuple[str, ...]) -> ctypes.CDLL:
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise CannotDraw(reasons[0])


def try_egl() -> dict[str, Any]:
    """On the first GPU that works, else on the CPU. `first` is the device that libraries take by themselves."""
    egl = load(EGL_LIBRARIES)
    devices = egl_devices(egl)
    found: dict[int, str] = {}
    reasons = []
    for number, (device, _) in enumerate(devices):
        try:
            found[number] = draw_on(egl, device)
        except CannotDraw as error:
            reasons.append(f"device {number}: {error}")
    if not found:
        raise CannotDraw("; ".join(reasons) or "EGL knows no device")
    chosen = next((number for number in found if not devices[number][1]), min(found))
    return {"renderer": found[chosen], "device": chosen, "first": min(found)}


def egl_devices(egl: ctypes.CDLL) -> list[tuple[c_void_p, bool]]:
    """All devices, and whether each is the CPU."""
    query = function(egl, b"eglQueryDevicesEXT", c_int, c_int, POINTER(c_void_p), POINTER(c_int))
    describe = function(egl, b"eglQueryDeviceStringEXT", c_char_p, c_void_p, c_int)
    devices, count = (c_void_p * MAX_DEVICES)(), c_int()
    if not query(MAX_DEVICES, devices, byref(count)):
        raise CannotDraw("EGL does not list its devices")
    return [
        (c_void_p(device), SOFTWARE in (describe(device, EGL_EXTENSIONS) or b"")) for device in devices[: count.value]
    ]


def draw_on(egl: ctypes.CDLL, device: c_void_p) -> str:
    """Makes an OpenGL context and returns its name."""
    get_display = function(egl, b"eglGetPlatformDisplayEXT", c_void_p, c_int, c_void_p, c_void_p)
    display = c_void_p(get_display(EGL_PLATFORM_DEVICE, device, None))
    if not display.value or not egl.eglInitialize(display, None, None):
        raise CannotDraw("cannot be initialised")
    config, count = c_void_p(), c_int()
    attributes = (c_int * len(CONFIG))(*CONFIG)
    if not egl.eglChooseConfig(display, attributes, byref(config), 1, byref(count)) or not count.value:
        raise CannotDraw("has no configuration to draw with")
    egl.eglBindAPI(EGL_OPENGL_API)
    egl.eglCreateContext.restype = c_void_p
    context = c_void_p(egl.eglCreateContext(display, config, None, None))
    if not context.value or not egl.eglMakeCurrent(display, None, None, context):
        raise CannotDraw("gives no OpenGL context")
    return renderer(function(egl, b"glGetString", c_char_p, c_int))


def try_osmesa() -> dict[str, Any]:
    library = load(OSMESA_LIBRARIES)
    library.OSMesaCreateContextExt.restype = c_void_p
    context = c_void_p(library.OSMesaCreateContextExt(GL_RGBA, 24, 0, 0, None))
    image = (c_ubyte * (8 * 8 * 4))()
    if not context.value or not library.OSMesaMakeCurrent(context, image, GL_UNSIGNED_BYTE, 8, 8):
        raise CannotDraw("gives no OpenGL context")
    library.OSMesaGetProcAddress.restype = c_void_p
    address = library.OSMesaGetProcAddress(b"glGetString")
    return {"renderer": renderer(ctypes.CFUNCTYPE(c_char_p, c_int)(address)), "device": 0, "first": 0}


def function(egl: ctypes.CDLL, name: bytes, result: Any, *arguments: Any) -> Any:
    egl.eglGetProcAddress.restype = c_void_p
    address = egl.eglGetProcAddress(name)
    if not address:
        raise CannotDraw(f"EGL has no {name.decode()}")
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def renderer(get_string: Any) -> str:
    name = get_string(GL_RENDERER)
    if not name:
        raise CannotDraw("its OpenGL context cannot be used")
    return str(name.decode(errors="replace"))


def main(backend: str) -> None:
    try:
        answer = {"egl": try_egl, "osmesa": try_osmesa}[backend]()
    except CannotDraw as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # nothing is cleaned up: some drivers fail only at that


if __name__ == "__main__":
    main(sys.argv[1])
