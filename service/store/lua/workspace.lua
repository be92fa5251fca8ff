-- ARGV: team, id, sha256, record (JSON). The first record of the same content wins; returns the one that holds.
local by_content = P .. 'uploads:' .. ARGV[1] .. ':' .. ARGV[3]
local known = redis.call('GET', by_content)
local record = known and redis.call('GET', P .. 'ws:' .. ARGV[1] .. ':' .. known)
local id = record and known or ARGV[2]
record = record or ARGV[4]
redis.call('SET', by_content, id, 'PX', RETENTION_MS)
redis.call('SET', P .. 'ws:' .. ARGV[1] .. ':' .. id, record, 'PX', RETENTION_MS)
return record
