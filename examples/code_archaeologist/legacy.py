"""The legacy program, and its data."""

from __future__ import annotations

SOURCE = """\
#!/usr/bin/env python
# sales.py - monthly sales report          $Revision: 1.7 $
# TODO: ask Bernd about the rounding
import sys, os, string

totals = {}
errors = 0

class Sale(object):
    def __init__(self, region, amount, tags=[]):
        self.region = region
        self.amount = amount
        self.tags = tags
        self.tags.append(region)

def load(fname):
    global errors
    f = open(fname)
    sales = []
    for line in f.readlines():
        line = line[:-1]
        if line == "" or line[0] == "#":
            continue
        parts = line.split(";")
        try:
            sales.append(Sale(parts[0].strip(), float(parts[1])))
        except:
            errors = errors + 1
    return sales

def report(fname):
    for s in load(fname):
        if totals.has_key(s.region) if hasattr(totals, "has_key") else s.region in totals:
            totals[s.region] = totals[s.region] + s.amount
        else:
            totals[s.region] = s.amount
    keys = list(totals.keys())
    keys.sort()
    sum = 0
    for k in keys:
        print("%-10s %10.2f" % (k, totals[k]))
        sum = sum + totals[k]
    print("%-10s %10.2f" % ("total", sum))
    if errors != 0:
        print("%d bad lines" % errors)

if __name__ == "__main__":
    if len(sys.argv) == 2 and os.path.exists(sys.argv[1]) == True:
        report(sys.argv[1])
    else:
        print("usage: sales.py FILE")
        sys.exit(2)
"""

SAMPLE = """\
# region; amount
north; 1200.50
south; 310
north; 99.5
east; n/a
west; 42.125

south; 7
nowhere
"""
