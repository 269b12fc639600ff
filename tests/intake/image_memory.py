"""Decodes images in a process of its own and prints how much memory that took.

Reads JSON: a list of [files, image_size]. Prints JSON: for each the shape of the array or the
error, the peak of memory above what was in use before, and what was planned for the largest file.
"""

import io
import json
import os
import sys
from pathlib import Path

from PIL import Image

from nearwise.data.images import decode

plan_of_one = decode.plan


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(files, size):
    planned = [0]

    def plan(*arguments):
        planned.append(plan_of_one(*arguments))
        return planned[-1]

    decode.plan = plan
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = resident("VmRSS")
    try:
        encoded = [decode.Encoded(Path(file).name, Path(file)) for file in files]
        result = decode.decode_images(encoded, len(files), image_size=size).shape
    except ValueError as error:
        result = str(error)
    return {
        "result": result,
        "peak": (resident("VmHWM") - before) / decode.MEGABYTE,
        "planned": max(planned) / decode.MEGABYTE,
    }


os.cpu_count = lambda: 8
for form in decode.FORMATS:  # load what Pillow loads on first use
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, form)
    decode.decode_images([decode.Encoded(form, stream.getvalue())] * 9, 9, image_size=4)
json.dump([measure(*one) for one in json.load(sys.stdin)], sys.stdout)
