"""Boxes of images, from the formats that annotation tools write.

``model`` holds what all formats have in common. A format that describes many images in one document
becomes ``Annotations``, the rows of a table of images. A format with a file for each image becomes
``ImageBoxes`` for each; ``beside`` pairs these files with the images and reads them together.
"""
