"""Images: resizing, warping, boxes."""
