"""The monthly Dow Jones index: windows of 12 months, the next 3 to predict; split by time.

Build it: `snapshard build examples/dowjones.py --out out`
"""

import snapshard as ss

recipe = ss.Recipe(
    name="dowjones",
    source=ss.Csv("data/dowjones.csv", types={"Date": ss.Timestamp("s"), "Price": "float32"}),
    prepare=[
        ss.series.windows(
            "Price",
            size=12,
            target="Price",
            horizon=3,
            time="Date",
            max_gap=31 * 24 * 60 * 60,  # in seconds, the unit of Date: no month may be missing
        ),
    ],
    # Windows overlap, so a hash split would put the same months into train and test.
    splits=ss.Splits.by_time("Date", train=0.8, validation=0.1, test=0.1),
)
