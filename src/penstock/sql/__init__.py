"""What the engines that are SQL databases share: schema translation, shape changes, how rows are
read for each other.
"""
