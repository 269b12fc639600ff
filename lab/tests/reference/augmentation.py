"""Changes of one image at a time, written out in loops over its pixels."""

import math


def slow_jitter_colors(image, brightness, contrast, saturation):
    """Brightness, contrast about the mean luminance, saturation about each pixel's own."""
    n, height, width = len(image), len(image[0]), len(image[0][0])

    def clamp(value):
        return min(255.0, max(0.0, value))

    def luminance(pixel):
        return pixel[0] if n == 1 else 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]

    def changed(pixel, middle, factor):
        return [clamp(middle + factor * (value - middle)) for value in pixel]

    pixels = [
        [[clamp(image[c][y][x] * brightness) for c in range(n)] for x in range(width)]
        for y in range(height)
    ]
    mean = sum(luminance(pixel) for row in pixels for pixel in row) / (height * width)
    pixels = [[changed(pixel, mean, contrast) for pixel in row] for row in pixels]
    if n == 3:
        pixels = [[changed(p, luminance(p), saturation) for p in row] for row in pixels]
    return [[[pixels[y][x][c] for x in range(width)] for y in range(height)] for c in range(n)]


def slow_rotate(image, degrees):
    """Turn counter-clockwise about the middle; bilinear between pixels, zero outside."""
    height, width = len(image[0]), len(image[0][0])
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def pixel(channel, y, x):
        return channel[y][x] if 0 <= y < height and 0 <= x < width else 0

    out = []
    for channel in image:
        rows = []
        for y in range(height):
            row = []
            for x in range(width):
                right, up = x - (width - 1) / 2, (height - 1) / 2 - y
                # Where this pixel was before the turn.
                source_x = cosine * right + sine * up + (width - 1) / 2
                source_y = (height - 1) / 2 - (cosine * up - sine * right)
                x0, y0 = math.floor(source_x), math.floor(source_y)
                part_x, part_y = source_x - x0, source_y - y0
                row.append(
                    (1 - part_y) * (1 - part_x) * pixel(channel, y0, x0)
                    + (1 - part_y) * part_x * pixel(channel, y0, x0 + 1)
                    + part_y * (1 - part_x) * pixel(channel, y0 + 1, x0)
                    + part_y * part_x * pixel(channel, y0 + 1, x0 + 1)
                )
            rows.append(row)
        out.append(rows)
    return out
