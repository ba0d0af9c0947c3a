"""What all stores in SQL databases share: the transactions, decided in Python over what one look has read.

The contract is kept by the same code on every database; a database has its own tables, statements, connections and way
to tell that a worker is dead. One commit, top to bottom:

```
store        SqlStore: the contract; which connection does what
gathering    the commits of many callers, carried out together
batch        one commit, one transaction: look ahead, carry out the operations, write
  holding requests starting asking      what each operation does
  placing                               where a new run stands in its queue
  transaction accounts                  what the operations of a transaction share: fences, lanes, links, ends, usage
stepping                                what has become of a step's transaction
claims queueing queues                  who takes which run; queues with limits
expiring                                ending runs by delivery that are late
workers schedules keeping               what else is written
queries listing feeds outlines          what is read
pruning archives                        runs that are deleted, or come from elsewhere
rows payloads blobs                     values to rows and back
database statements                     what a database has to bring along
```
"""
