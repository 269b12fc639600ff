"""Changes of one image at a time, written out in loops over its pixels."""


def slow_crop_and_flip(image, padding, top, left, flipped, reflect=False):
    """Crop at (top, left) of the padded image (c, h, w) of nested lists, then mirror.

    Padded with zeros, or by reflection at the middle of the outermost pixels.
    """

    def reflected(at, length):
        at = -at if at < 0 else at
        return 2 * (length - 1) - at if at >= length else at

    height, width = len(image[0]), len(image[0][0])
    out = []
    for channel in image:
        rows = []
        for y in range(height):
            row = []
            for x in range(width):
                source_y, source_x = y + top - padding, x + left - padding
                if reflect:
                    source_y, source_x = reflected(source_y, height), reflected(source_x, width)
                inside = 0 <= source_y < height and 0 <= source_x < width
                row.append(channel[source_y][source_x] if inside else 0)
            rows.append(row[::-1] if flipped else row)
        out.append(rows)
    return out


def slow_cut_out(image, side, row, column):
    """Fill the square around (row, column) with the mean of each channel."""
    height, width = len(image[0]), len(image[0][0])
    top, left = row - side // 2, column - side // 2
    out = []
    for channel in image:
        mean = sum(map(sum, channel)) / (height * width)
        out.append(
            [
                [
                    mean if top <= y < top + side and left <= x < left + side else channel[y][x]
                    for x in range(width)
                ]
                for y in range(height)
            ]
        )
    return out
