"""What AWS asks a caller's policies about a request: actions, resources, condition keys.

The emulator's door writes down each distinct question (`emulator/record_patches.py`), and a test of
the deployed stack puts them to the policies of the caller's role, as the template gives them. It
knows only what LakeSync calls: any other request is written down as unknown, which fails that test.
"""
