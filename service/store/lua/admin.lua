-- ARGV: hash, key id, team, record (JSON). Makes this hash the configured admin key; returns its record.
local hash, team = ARGV[1], ARGV[3]

local function drop(other)
  local record = redis.call('GET', P .. 'key:' .. other)
  if record then
    local key = cjson.decode(record)
    redis.call('HDEL', P .. 'keys:' .. key.team, key.id)
    redis.call('DEL', P .. 'key:' .. other)
  end
end

local old = redis.call('GET', P .. 'admin')
redis.call('SET', P .. 'admin', hash)
local present = redis.call('GET', P .. 'key:' .. hash)
if old == hash and present then
  return present
end
if old then
  drop(old)
end
drop(hash)  -- were the secret that of an ordinary key, it becomes the admin key
redis.call('SADD', P .. 'teams', team)
redis.call('SET', P .. 'key:' .. hash, ARGV[4])
redis.call('HSET', P .. 'keys:' .. team, ARGV[2], hash)
return ARGV[4]
